// exp with a relative error of about 1e-7: 2^n·e^r, |r| <= ln(2)/2, a polynomial of degree 6. Results below 2^-126 lose
// precision gradually or vanish; above the range infinity comes out.
inline F exp(F x) {
  const F clamped = min(max(x, set1(-104.F)), set1(89.F));
  const F n = round_even(mul(clamped, set1(1.44269504F)));
  F r = fnma(n, set1(0.693359375F), clamped);
  r = fnma(n, set1(-2.12194440e-4F), r);
  F p = set1(1.9875691500e-4F);
  p = fma(p, r, set1(1.3981999507e-3F));
  p = fma(p, r, set1(8.3334519073e-3F));
  p = fma(p, r, set1(4.1665795894e-2F));
  p = fma(p, r, set1(1.6666665459e-1F));
  p = fma(p, r, set1(5.0000001201e-1F));
  return scale_by_power(add(fma(mul(p, r), r, r), set1(1.F)), n);
}

inline F sigmoid(F x) {
  return div(set1(1.F), add(set1(1.F), exp(sub(zero(), x))));
}

inline float sum_lanes(F v) {
  return _mm_cvtss_f32(sum4(v, v, v, v));
}
