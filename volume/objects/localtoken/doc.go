// Package localtoken issues service account tokens on a machine that has no
// Kubernetes API to ask, so that pods with a projected token work there.
//
// The tokens are JSON web tokens with the claims that Kubernetes' own have,
// signed with ES256 (RFC 7518) by a key that never leaves this machine. No
// cluster trusts them: their issuer is [IssuerName], a name that cannot exist.
// Who wants to verify them takes the key from [Issuer.JWKS].
package localtoken
