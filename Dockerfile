# The judge as a service; docs/serving.md says how it is run.
#   docker build -t discode .
#   docker run --rm --read-only --cap-drop ALL -p 127.0.0.1:8000:8000 discode
FROM python:3.12-slim AS build
WORKDIR /build
COPY pyproject.toml README.md LICENSE ./
COPY docs/MODEL_CARD.md docs/
COPY src src
RUN python -m venv /opt/discode \
    && /opt/discode/bin/pip install --no-cache-dir '.[serve]'

FROM python:3.12-slim
COPY --from=build /opt/discode /opt/discode
# Nothing is written but what --store FILE names: put it on a volume at /data.
RUN install -d -o 10001 -g 10001 /data
WORKDIR /data
USER 10001:10001
ENV PATH=/opt/discode/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s --retries=3 CMD ["python", "-c", "import http.client; c = http.client.HTTPConnection('127.0.0.1', 8000, timeout=4); c.request('GET', '/healthz', headers={'host': 'localhost'}); raise SystemExit(c.getresponse().status != 200)"]
ENTRYPOINT ["discode", "serve", "--host", "0.0.0.0", "--port", "8000"]
