"""Tokenizer file, encoder, compressed vocabulary, pool and packer."""
import json
import os
import random
import tempfile
import unittest
from pathlib import Path

from tools.train.tokenizer.compressed_vocab import compressed_vocab

ROOT = Path(__file__).parents[2]
VECTORS = Path(os.environ.get("DEEPINFER_VECTORS", ROOT / ".." / "shared" / "vectors"))
TOKENIZER = ROOT / "models" / "tiny" / "tokenizer.json"

try:
    import numpy
    import tokenizers
except ImportError:
    numpy = tokenizers = None


class TokenizerFile(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.file = json.loads(TOKENIZER.read_text(encoding="utf-8"))

    def test_layout(self):
        vocab, added = self.file["model"]["vocab"], self.file["added_tokens"]
        self.assertEqual(sorted(vocab.values()), list(range(4032)))
        self.assertEqual([t["id"] for t in added], [0, 1, 2, *range(4032, 4096)])
        self.assertEqual(len(self.file["model"]["merges"]), 4032 - 3 - 256)
        self.assertEqual([t["content"] for t in added[:3]],
                         ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"])
        spellings = {t["content"]: t for t in added}
        for token in ("<｜System｜>", "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>",
                      "｜DSML｜", "<｜latest_reminder｜>", "<｜deepseek_image｜>"):
            self.assertIn(token, spellings)
        self.assertTrue(spellings["<｜System｜>"]["special"])
        self.assertFalse(spellings["<｜User｜>"]["special"])

    def test_same_splits_as_the_release(self):
        path = VECTORS / "recipe" / "tokenizer.json"
        if not path.exists():
            self.skipTest(f"no vectors at {VECTORS}")
        other = json.loads(path.read_text(encoding="utf-8"))
        for key in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
            self.assertEqual(self.file[key], other[key])
        flags = {t["content"]: (t["special"], t["normalized"]) for t in other["added_tokens"]}
        for token in self.file["added_tokens"]:
            if token["content"] in flags:
                self.assertEqual(flags[token["content"]], (token["special"], token["normalized"]))

    def test_compressed_vocabulary(self):
        mapping, size = compressed_vocab(str(TOKENIZER))
        self.assertEqual(len(mapping), 4096)
        self.assertEqual(max(mapping) + 1, size)
        path = VECTORS / "model" / "v41_trained" / "tokenizer.json"
        if not path.exists():
            self.skipTest(f"no vectors at {VECTORS}")
        self.assertEqual(compressed_vocab(str(path))[1], 3443)

    def test_compressed_vocabulary_of_the_release(self):
        path = VECTORS / "model" / "engram_vocab_map.safetensors"
        if not path.exists():
            self.skipTest(f"no vectors at {VECTORS}")
        mapping, size = compressed_vocab(str(VECTORS / "recipe" / "tokenizer.json"))
        self.assertEqual(size, 99092)
        raw = path.read_bytes()
        header = int.from_bytes(raw[:8], "little")
        entry = json.loads(raw[8:8 + header])["old2new"]
        self.assertEqual(entry["dtype"], "I32")
        begin, end = (8 + header + x for x in entry["data_offsets"])
        stored = memoryview(raw[begin:end]).cast("i")
        self.assertEqual(list(stored), mapping)


@unittest.skipIf(tokenizers is None, "numpy and tokenizers are not installed")
class Encoding(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        from tools.train.data.encode import Encoder
        cls.encoder = Encoder(TOKENIZER)

    def test_ascii_cut_equals_the_tokenizer(self):
        r = random.Random(1)
        alphabet = " \t\n\r.,;'\"aAbB12 34-_<>/|:é"
        for _ in range(4000):
            text = "".join(r.choice(alphabet) for _ in range(r.randint(0, 16)))
            self.assertEqual(self.encoder.plain(text), self.encoder.plain_slow(text), repr(text))

    def test_special_spellings_in_text_stay_text(self):
        think = self.encoder.special("<think>")
        for text in ("say <think> now", "<｜User｜>", "a<|EOT|>"):
            ids = self.encoder.plain(text)
            self.assertTrue(all(i < 4032 for i in ids), text)
            self.assertNotIn(think, ids)
            self.assertEqual(self.encoder.tokenizer.decode(ids), text)

    def test_weights(self):
        from tools.train.data.render import render_training
        ids, weights = self.encoder.encode(render_training({
            "messages": [{"role": "user", "content": "Hi"},
                         {"role": "assistant", "content": "Hello!"}], "thinking": False}))
        self.assertEqual(len(ids), len(weights))
        self.assertEqual((ids[0], weights[0], ids[-1], weights[-1]), (0, 1, 1, 10))
        self.assertEqual(self.encoder.tokenizer.decode(
            [i for i, w in zip(ids, weights) if w == 10], skip_special_tokens=True), "Hello!")

    def test_unknown_special(self):
        with self.assertRaisesRegex(ValueError, "no token '<x>'"):
            self.encoder.special("<x>")


@unittest.skipIf(tokenizers is None, "numpy and tokenizers are not installed")
class Pool(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        from tools.train.data import pool
        cls.pool = pool
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        pool._set_up(cls.folder.name, 7, str(TOKENIZER))
        for job in (("short", 0, 200), ("short", 1, 200), ("long", 0, 6)):
            pool.write_shard(job)

    def packer(self, seed=1, **rest):
        return self.pool.Packer(self.folder.name, {"short": 0.8, "long": 0.2}, 511, 3, seed, **rest)

    def test_shards(self):
        folder = Path(self.folder.name)
        tokens = numpy.load(folder / "short_00000.tokens.npy")
        weights = numpy.load(folder / "short_00000.weights.npy")
        starts = numpy.load(folder / "short_00000.docs.npy")
        self.assertEqual((tokens.dtype, weights.dtype, starts.dtype),
                         (numpy.uint16, numpy.uint8, numpy.int64))
        self.assertEqual(len(tokens), len(weights))
        self.assertEqual(len(starts), 200)
        self.assertTrue((tokens[starts] == 0).all())
        self.assertEqual(set(numpy.unique(weights)), {1, 10})
        self.assertFalse([f for f in os.listdir(folder) if f.startswith(".")])

    def test_windows(self):
        packer = self.packer()
        for _ in range(5):
            tokens, weights = packer.next()
            self.assertEqual((tokens.shape, weights.shape), ((3, 512), (3, 512)))
            self.assertEqual((tokens.dtype, weights.dtype), (numpy.int64, numpy.float32))
            self.assertTrue((tokens[:, 0] == 0).all())
            self.assertEqual({float(x) for x in numpy.unique(weights)},
                             {float(numpy.float32(0.1)), 1.0})

    def test_resumes(self):
        one = self.packer()
        for _ in range(40):   # past the end of the pool
            one.next()
        state = json.loads(json.dumps(one.state_dict()))
        wanted = [one.next() for _ in range(20)]
        two = self.packer()
        two.load_state_dict(state)
        for tokens, weights in wanted:
            got_tokens, got_weights = two.next()
            self.assertTrue((tokens == got_tokens).all())
            self.assertTrue((weights == got_weights).all())

    def test_new_shards_are_read(self):
        with tempfile.TemporaryDirectory() as folder:
            self.pool._set_up(folder, 7, str(TOKENIZER))
            self.pool.write_shard(("short", 0, 20))
            packer = self.pool.Packer(folder, {"short": 1.0}, 511, 2, 1)
            packer.next()
            self.pool.write_shard(("short", 3, 20))
            for _ in range(30):
                packer.next()
            self.assertEqual(set(packer.streams["short"].visits), {0, 3})

    def test_ranks_read_different_shards(self):
        packers = [self.packer(rank=r, world=2) for r in range(2)]
        for p in packers:
            p.mix = p.first = (["short"], numpy.array([1.0]))
            p.next()
        self.assertEqual([p.streams["short"].shard for p in packers], [0, 1])

    def test_errors(self):
        with self.assertRaisesRegex(ValueError, "kind_mix"):
            self.pool.Packer(self.folder.name, {"medium": 1.0}, 511, 1, 1)
        with tempfile.TemporaryDirectory() as empty, self.assertRaises(TimeoutError):
            self.pool.Packer(empty, {"short": 1.0}, 511, 1, 1, patience=0.1).next()

    def test_jobs_cover_the_documents(self):
        made = self.pool.jobs({"short": 13000, "long": 400})
        self.assertEqual(sum(n for k, _, n in made if k == "short"), 13000)
        self.assertEqual({k for k, _, _ in made[:2]}, {"short", "long"})


if __name__ == "__main__":
    unittest.main()
