"""The weights that ship, read back into training parameters: a continued training begins exactly where they stand."""
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "models" / "tiny"

try:
    import torch
except ImportError:
    torch = None


@unittest.skipIf(torch is None, "needs torch")
class RoundTrip(unittest.TestCase):
    def test_reading_and_writing_changes_no_value(self):
        sys.path.insert(0, str(ROOT / "tools" / "train"))
        from model import quant
        from model.checkpoint import checkpoint_tensors, dequantise, load_params, read_tensors
        from model.config import load_config
        from model.params import make_backbone, make_draft
        config, stored = load_config(MODEL), read_tensors(MODEL)
        for params in (make_backbone(config), make_draft(config)):
            load_params(params, stored)
            written = checkpoint_tensors(params)
            for s in params.specs:
                value = params.values[s.key].detach()
                self.assertTrue(torch.equal(quant.FAKE_QUANT[s.kind](value), value), s.key)
                for name in s.names:
                    # the codes may be twice and the scale half of the stored ones, the values not
                    self.assertTrue(torch.equal(dequantise(name, written, s.kind), dequantise(name, stored, s.kind)), name)
            for i in range(params.bias.shape[0]):
                name = f"{params.prefix}.{i}.ffn.gate.bias"
                self.assertTrue(torch.equal(written[name], stored[name]), name)
            load_params(params, written)
            for name, tensor in checkpoint_tensors(params).items():    # from here on the bytes stay too
                self.assertTrue(torch.equal(tensor.view(torch.uint8), written[name].view(torch.uint8)), name)


if __name__ == "__main__":
    unittest.main()
