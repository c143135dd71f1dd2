// How likely a token was, as a share and in words.

export const probability = (logprob) => (logprob === null ? null : Math.exp(logprob));

export function percent(share) {
  if (share === null) return "not predicted";
  if (share < 0.001) return "< 0.1 %";
  return `${(share * 100).toFixed(share > 0.9995 ? 0 : 1)} %`;
}
