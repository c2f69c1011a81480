"""Where each benchmark comes from: source, licence, citation, files, counts, checksums.

Nothing is downloaded: the rows say what to fetch. The paper's numbers are in ``published.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_HODOSH = "Hodosh, Young, Hockenmaier: Framing Image Description as a Ranking Task. JAIR 47 (2013)"
_FLICKR = "Flickr8k_text.zip and Flickr8k_Dataset.zip (github.com/jbrownlee/Datasets/releases)"
_COPY = "copies of Flickr8k_text.zip (github.com/rokaHakor/ImageCaptioning, Arun-kr630/ca)"
_FLICKR_LICENCE = "research and education; the photographs are their photographers'"


@dataclass(frozen=True)
class File:
    """An annotation file: how many rows a whole one has, and the SHA-256 of known versions."""

    rows: int = 0
    """0 where any number may be right."""
    what: str = "rows"
    sha256: str = ""
    origin: str = ""
    """Who distributes the version with this checksum."""


@dataclass(frozen=True)
class Facts:
    """What is known of a benchmark.

    ``forms`` are the sets of files it is read from, tried in order; ``extra`` files are used where
    they are there. ``folders`` are names its folder goes by, ``images`` those of the pictures'.
    """

    about: str
    source: str
    licence: str
    citation: str
    forms: tuple[tuple[str, ...], ...]
    files: dict[str, File] = field(default_factory=dict)
    extra: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    images: tuple[str, ...] = ("images", "")

    @property
    def fetch(self) -> str:
        """Say where to get it, under which terms, and whom to cite."""
        return f"source: {self.source}; licence: {self.licence}; cite: {self.citation}"


_TOKENS = File(
    40_460,
    "captions",
    "fc18d93dd1816b367a790e08c73c10b4ef1465102bad4f2412f19ea967c1344a",
    _COPY,
)
_FLICKR_IMAGES = (
    "images", "Images", "Flicker8k_Dataset", "Flickr8k_Dataset",
    "Flickr8k_Dataset/Flicker8k_Dataset", "",
)  # fmt: skip

FACTS: dict[str, Facts] = {
    "flickr8k-expert": Facts(
        "5,822 captions, three experts each, 1-4; τ",
        _FLICKR,
        _FLICKR_LICENCE,
        _HODOSH,
        forms=(("ExpertAnnotations.txt", "Flickr8k.token.txt"), ("flickr8k.json",)),
        files={
            "ExpertAnnotations.txt": File(
                5822,
                "rows",
                "e604ba9c13158f74dcc6319362ff3c10a30d883851618b49054a75aab8cb8e6b",
                _COPY,
            ),
            "Flickr8k.token.txt": _TOKENS,
            "flickr8k.json": File(16_992, "ratings"),
        },
        folders=("flickr8k", "Flickr8k", "flickr8k_text", "Flickr8k_text"),
        images=_FLICKR_IMAGES,
    ),
    "flickr8k-cf": Facts(
        "47,830 captions, the share of crowd workers who said yes; τ",
        _FLICKR,
        _FLICKR_LICENCE,
        _HODOSH,
        forms=(
            ("CrowdFlowerAnnotations.txt", "Flickr8k.token.txt"),
            ("crowdflower_flickr8k.json",),
        ),
        files={
            "CrowdFlowerAnnotations.txt": File(
                47_830,
                "rows",
                "9ce4a12d14634554983be996319452efd74f10a4e666088dc9f8dff83977e462",
                _COPY,
            ),
            "Flickr8k.token.txt": _TOKENS,
            "crowdflower_flickr8k.json": File(47_830, "ratings"),
        },
        folders=("flickr8k", "Flickr8k", "flickr8k_text", "Flickr8k_text"),
        images=_FLICKR_IMAGES,
    ),
    "composite": Facts(
        "11,985 captions of Flickr8k, Flickr30k and COCO, correctness 1-5; τ",
        "imagesdg.wordpress.com/image-to-scene-description-graph; as one JSON: github.com/Yebin46/"
        "FLEUR, with references from github.com/hwanheelee1993/UMIC",
        "none stated",
        "Aditya et al.: From Images to Sentences through Scene Description Graphs. 2015",
        forms=(("composite.json",),),
        files={
            "composite.json": File(
                11_985,
                "rows",
                "a23a815bd439a84088ba2749eed99bd5c506961a1375c78a576fd23edcda19f7",
                "this project: FLEUR's rows joined with the references of UMIC and VisCE2",
            )
        },
        folders=("composite", "Composite"),
        images=(
            "images", "", "Flickr8k_Dataset", "Flickr30k_Dataset", "val2014", "flickr8k",
            "flickr30k", "coco2014", "../flickr8k/images", "../flickr30k/images", "../coco/val2014",
        ),
    ),
    "pascal50s": Facts(
        "4,000 choices between two captions, human and machine; accuracy by category",
        "github.com/Yebin46/FLEUR (annotations/pascal_50s.json) and github.com/vrama91/"
        "cider-matlab (*.mat); pictures: Pascal VOC",
        "none stated",
        "Vedantam, Zitnick, Parikh: CIDEr. CVPR 2015",
        forms=(("pascal_50s.json", "pascal50S.mat"),),
        files={
            "pascal_50s.json": File(
                4000,
                "choices",
                "f6033bbcf74583a22d289cf080fff5b930c04cf6d29e33e0170552e8e0237da9",
                "github.com/Yebin46/FLEUR",
            ),
            "pascal50S.mat": File(
                1000,
                "images with 50 references",
                "f927c038104d9579ce89be6b8c1a10415b41ce02519becc28238b6fb75a145ac",
                "github.com/vrama91/cider-matlab",
            ),
            "pair_pascal.mat": File(
                4000,
                "choices",
                "63925be0d9a9d98d68cfdef2be6667a87b6ee23f08f3a1397edaaee07ad09d84",
                "github.com/vrama91/cider-matlab",
            ),
            "pascal_cands.mat": File(
                4000,
                "choices",
                "381d85e343eaddef86950b99d3c0e0f9f5b34277f743bded4ee2f3a2c6aea0e8",
                "github.com/vrama91/cider-matlab",
            ),
        },
        extra=("pair_pascal.mat", "pascal_cands.mat"),
        folders=("pascal50s", "Pascal-50s", "pascal-50s", "Pascal50S"),
        images=(
            "images", "JPEGImages", "VOC2012/JPEGImages", "VOC2010/JPEGImages",
            "VOCdevkit/VOC2012/JPEGImages", "VOCdevkit/VOC2010/JPEGImages", "",
        ),
    ),
    "foil": Facts(
        "a COCO caption against the same with one wrong noun; accuracy",
        "foilunitn.github.io (foilv1.0_test_2017.json), or github.com/Heidelberg-NLP/VALSE "
        "(foil-it.json, 1,000 of them); references: COCO's captions_val2014.json",
        "VALSE's file MIT, the original none stated; COCO captions CC BY 4.0",
        "Shekhar et al.: FOIL it! ACL 2017; Parcalabescu et al.: VALSE. ACL 2022",
        forms=(("foilv1.0_test_2017.json",), ("foil-it.json",)),
        files={
            "foil-it.json": File(
                1000,
                "choices",
                "6f6f0d7494271ed28f6e6f075c3ba36ba1bc45d00ecf7403920f060915130460",
                "github.com/Heidelberg-NLP/VALSE",
            ),
            "foilv1.0_test_2017.json": File(),
            "captions_val2014.json": File(what="captions"),
        },
        extra=("captions_val2014.json",),
        folders=("foil", "FOIL"),
        images=("images", "val2014", "", "../coco/val2014"),
    ),
    "mceval": Facts(
        "6,000 choices between two captions in six visual domains; accuracy by domain",
        "the authors of DISCODE (no public copy is known); or your own in the same format",
        "unknown; pictures: DomainNet and InfographicVQA, research only",
        "Inoue et al.: DISCODE. AAAI 2026",
        forms=(("mceval.jsonl",),),
        files={"mceval.jsonl": File(what="choices")},
        folders=("mceval", "MCEval"),
    ),
    "custom": Facts(
        "your own ratings or preferences; docs/adding-a-benchmark.md has the format",
        "you",
        "yours",
        "yours",
        forms=(
            ("ratings.jsonl",), ("ratings.csv",), ("preferences.jsonl",), ("preferences.csv",),
        ),
        folders=("custom",),
    ),
}  # fmt: skip
"""The benchmarks, by name."""
