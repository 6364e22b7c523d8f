// Package localtoken issues service account tokens on a machine without a
// Kubernetes API, so that pods with a projected token work there.
//
// The tokens are JSON web tokens with the same claims as Kubernetes' own. They
// are signed with ES256 (RFC 7518) by a key that never leaves this machine. No
// cluster trusts them: their issuer is [IssuerName], a name that cannot exist. A
// verifier gets the key from [Issuer.JWKS].
//
// An Issuer works on every Unix. Elsewhere its errors match [errors.ErrUnsupported],
// too, since nothing could keep the key from other users.
package localtoken
