BEGIN TRANSACTION;
CREATE TABLE answer (
	id INTEGER NOT NULL,
	slot_id INTEGER NOT NULL,
	round INTEGER NOT NULL,
	image_id INTEGER NOT NULL,
	person_id INTEGER NOT NULL,
	kind TEXT NOT NULL,
	submission TEXT NOT NULL,
	choice INTEGER,
	swapped BOOLEAN NOT NULL,
	text TEXT,
	seconds DOUBLE NOT NULL,
	created DOUBLE NOT NULL,
	PRIMARY KEY (id),
	UNIQUE (slot_id, round),
	CONSTRAINT choice_or_text CHECK ((choice IS NULL) <> (text IS NULL)),
	CONSTRAINT choice_known CHECK (choice IN (0, 1)),
	FOREIGN KEY(slot_id) REFERENCES slot (id),
	FOREIGN KEY(image_id) REFERENCES image (id),
	FOREIGN KEY(person_id) REFERENCES person (id),
	UNIQUE (submission)
);
INSERT INTO "answer" VALUES(1,3,0,1,2,'compare','submission-0',0,1,NULL,5.0,10.0);
CREATE TABLE campaign (
	id INTEGER NOT NULL,
	version INTEGER NOT NULL,
	name TEXT NOT NULL,
	rules TEXT NOT NULL,
	checks TEXT NOT NULL,
	lease_seconds DOUBLE NOT NULL,
	pay_per_hour DOUBLE NOT NULL,
	instructions TEXT NOT NULL,
	created DOUBLE NOT NULL,
	PRIMARY KEY (id),
	CONSTRAINT one_campaign CHECK (id = 1)
);
INSERT INTO "campaign" VALUES(1,1,'mceval','{"consensus": "all", "flags": 1, "people": 1, "revise": "always", "seed": 0, "skips": 5, "writers": 4}','{"automatic": true, "gold_after": 5, "gold_least": 0.6, "gold_rate": 0.0, "quick_after": 10, "quick_most": 0.5, "quick_seconds": 0.0}',900.0,23.0,'',0.0);
CREATE TABLE candidate (
	id INTEGER NOT NULL,
	image_id INTEGER NOT NULL,
	writer TEXT NOT NULL,
	text TEXT NOT NULL,
	PRIMARY KEY (id),
	UNIQUE (image_id, writer),
	FOREIGN KEY(image_id) REFERENCES image (id)
);
INSERT INTO "candidate" VALUES(1,1,'w1','w1 says a 0');
INSERT INTO "candidate" VALUES(2,1,'w2','w2 says a 0');
INSERT INTO "candidate" VALUES(3,1,'w3','w3 says a 0');
INSERT INTO "candidate" VALUES(4,1,'w4','w4 says a 0');
INSERT INTO "candidate" VALUES(5,2,'w1','w1 says a 1');
INSERT INTO "candidate" VALUES(6,2,'w2','w2 says a 1');
INSERT INTO "candidate" VALUES(7,2,'w3','w3 says a 1');
INSERT INTO "candidate" VALUES(8,2,'w4','w4 says a 1');
INSERT INTO "candidate" VALUES(9,3,'w1','w1 says a 2');
INSERT INTO "candidate" VALUES(10,3,'w2','w2 says a 2');
INSERT INTO "candidate" VALUES(11,3,'w3','w3 says a 2');
INSERT INTO "candidate" VALUES(12,3,'w4','w4 says a 2');
CREATE TABLE domain (
	id INTEGER NOT NULL,
	name TEXT NOT NULL,
	quota INTEGER NOT NULL,
	PRIMARY KEY (id),
	UNIQUE (name)
);
INSERT INTO "domain" VALUES(1,'a',2);
CREATE TABLE event (
	id INTEGER NOT NULL,
	created DOUBLE NOT NULL,
	kind TEXT NOT NULL,
	person_id INTEGER,
	image_id INTEGER,
	detail TEXT NOT NULL,
	PRIMARY KEY (id)
);
INSERT INTO "event" VALUES(1,0.0,'active',NULL,2,'');
INSERT INTO "event" VALUES(2,0.0,'active',NULL,1,'');
INSERT INTO "event" VALUES(3,0.0,'invited',1,NULL,'comparer');
INSERT INTO "event" VALUES(4,0.0,'invited',2,NULL,'comparer');
INSERT INTO "event" VALUES(5,0.0,'invited',3,NULL,'reviser');
INSERT INTO "event" VALUES(6,1.0,'leased',1,2,'compare');
INSERT INTO "event" VALUES(7,2.0,'flag',1,2,'a face');
INSERT INTO "event" VALUES(8,2.0,'discarded',NULL,2,'flagged by 1 people: a face');
INSERT INTO "event" VALUES(9,2.0,'active',NULL,3,'');
INSERT INTO "event" VALUES(10,5.0,'leased',2,1,'compare');
INSERT INTO "event" VALUES(11,10.0,'answered',2,1,'compare');
CREATE TABLE image (
	id INTEGER NOT NULL,
	domain_id INTEGER,
	digest TEXT NOT NULL,
	state_key TEXT NOT NULL,
	dhash TEXT NOT NULL,
	path TEXT NOT NULL,
	source TEXT NOT NULL,
	state TEXT NOT NULL,
	reason TEXT NOT NULL,
	rank TEXT NOT NULL,
	revised INTEGER,
	first INTEGER,
	second INTEGER,
	gold INTEGER,
	preference INTEGER,
	reference TEXT,
	PRIMARY KEY (id),
	CONSTRAINT state_known CHECK (state IN ('pool', 'active', 'done', 'discarded', 'unreadable', 'duplicate', 'gold')),
	UNIQUE (digest, state_key),
	FOREIGN KEY(domain_id) REFERENCES domain (id)
);
INSERT INTO "image" VALUES(1,1,'12f8b5a58a40c9e0da657fba1ad853e27e36dde9fc454e4f27c250a507aef02e','','','a/0.png','a/0.png','active','','bf6bcfbe29e2cd14',3,1,4,NULL,0,NULL);
INSERT INTO "image" VALUES(2,1,'391d545b6971354e834fd411e6fbe505e95fecd5e47e32c196b7766ea4deda4c','','','a/1.png','a/1.png','discarded','flagged by 1 people: a face','0dbf5828cc18ed42',5,8,7,NULL,NULL,NULL);
INSERT INTO "image" VALUES(3,1,'57fad4fc99fba5756532321b1d0bb89f4d72e02eb82b44d6768f2a8feb62545c','','','a/2.png','a/2.png','active','','e7133e1e0fb83368',12,10,9,NULL,NULL,NULL);
CREATE TABLE pass (
	id INTEGER NOT NULL,
	image_id INTEGER NOT NULL,
	person_id INTEGER NOT NULL,
	kind TEXT NOT NULL,
	reason TEXT NOT NULL,
	created DOUBLE NOT NULL,
	PRIMARY KEY (id),
	CONSTRAINT kind_known CHECK (kind IN ('skip', 'flag')),
	FOREIGN KEY(image_id) REFERENCES image (id),
	FOREIGN KEY(person_id) REFERENCES person (id)
);
INSERT INTO "pass" VALUES(1,2,1,'flag','a face',2.0);
CREATE TABLE person (
	id INTEGER NOT NULL,
	name TEXT NOT NULL,
	role TEXT NOT NULL,
	state TEXT NOT NULL,
	reason TEXT NOT NULL,
	token_hash TEXT,
	worker TEXT,
	consented DOUBLE,
	created DOUBLE NOT NULL,
	PRIMARY KEY (id),
	CONSTRAINT role_known CHECK (role IN ('reviser', 'comparer', 'both', 'study', 'admin')),
	CONSTRAINT state_known CHECK (state IN ('active', 'careless', 'left')),
	UNIQUE (token_hash),
	UNIQUE (worker)
);
INSERT INTO "person" VALUES(1,'c0','comparer','active','','76d8ba41d231ddad45c5e68b454941bb4ce015d017bb96b64afd2ff786298776',NULL,NULL,0.0);
INSERT INTO "person" VALUES(2,'c1','comparer','active','','676e038210c6adefc606bd78282eb8a340d8a24d39c43ea20019af2463d6c893',NULL,NULL,0.0);
INSERT INTO "person" VALUES(3,'r0','reviser','active','','56efe5177342e7b801e56fa1ae9339bd84e9d895ad59c33f2cc22cb9ddd7be40',NULL,NULL,0.0);
CREATE TABLE slot (
	id INTEGER NOT NULL,
	image_id INTEGER NOT NULL,
	kind TEXT NOT NULL,
	number INTEGER NOT NULL,
	state TEXT NOT NULL,
	round INTEGER NOT NULL,
	person_id INTEGER,
	lease TEXT,
	leased_at DOUBLE,
	expires DOUBLE,
	PRIMARY KEY (id),
	CONSTRAINT kind_known CHECK (kind IN ('revise', 'compare', 'study', 'gold')),
	CONSTRAINT state_known CHECK (state IN ('open', 'leased', 'answered', 'closed')),
	UNIQUE (image_id, kind, number),
	UNIQUE (image_id, person_id),
	FOREIGN KEY(image_id) REFERENCES image (id),
	FOREIGN KEY(person_id) REFERENCES person (id),
	UNIQUE (lease)
);
INSERT INTO "slot" VALUES(1,2,'compare',0,'closed',0,NULL,NULL,NULL,NULL);
INSERT INTO "slot" VALUES(2,2,'revise',0,'closed',0,NULL,NULL,NULL,NULL);
INSERT INTO "slot" VALUES(3,1,'compare',0,'answered',0,2,'Cp3WoufGpH0-gC9q_7TN2bYA',5.0,905.0);
INSERT INTO "slot" VALUES(4,1,'revise',0,'open',0,NULL,NULL,NULL,NULL);
INSERT INTO "slot" VALUES(5,3,'compare',0,'open',0,NULL,NULL,NULL,NULL);
INSERT INTO "slot" VALUES(6,3,'revise',0,'open',0,NULL,NULL,NULL,NULL);
CREATE TABLE void (
	answer_id INTEGER NOT NULL,
	reason TEXT NOT NULL,
	created DOUBLE NOT NULL,
	PRIMARY KEY (answer_id),
	FOREIGN KEY(answer_id) REFERENCES answer (id)
);
CREATE INDEX image_queue ON image (domain_id, state, rank);
CREATE UNIQUE INDEX slot_one_lease ON slot (person_id) WHERE state = 'leased';
CREATE INDEX slot_queue ON slot (state, kind, id);
CREATE INDEX pass_image ON pass (image_id);
CREATE INDEX pass_person ON pass (person_id, image_id);
CREATE INDEX answer_person ON answer (person_id, image_id);
COMMIT;
