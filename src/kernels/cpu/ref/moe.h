#pragma once

namespace di::kernels::cpu::ref {

// a = silu(g)·u with g = min(gate, limit), u = clamp(up, ±limit) (model.md §5.9).
float swiglu(float gate, float up, float limit);

}  // namespace di::kernels::cpu::ref
