package localtoken

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
)

// coordinate is the size in bytes of a number of the curve P-256.
const coordinate = 32

// signingKey is the private key with the identifier that tokens and the key
// set share. It never changes.
type signingKey struct {
	private *ecdsa.PrivateKey
	id      string
}

// newSigningKey names the key as Kubernetes does: by the hash of its public
// part.
func newSigningKey(private *ecdsa.PrivateKey) (*signingKey, error) {
	der, err := x509.MarshalPKIXPublicKey(&private.PublicKey)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(der)
	return &signingKey{private: private, id: base64.RawURLEncoding.EncodeToString(sum[:])}, nil
}

// sign returns the claims as a JSON web token in its compact form (RFC 7515).
func (k *signingKey) sign(c claims) (string, error) {
	header, err := json.Marshal(map[string]string{"alg": "ES256", "kid": k.id})
	if err != nil {
		return "", err
	}
	payload, err := json.Marshal(c)
	if err != nil {
		return "", err
	}
	signed := base64.RawURLEncoding.EncodeToString(header) + "." + base64.RawURLEncoding.EncodeToString(payload)
	digest := sha256.Sum256([]byte(signed))
	r, s, err := ecdsa.Sign(rand.Reader, k.private, digest[:])
	if err != nil {
		return "", err
	}
	var signature [2 * coordinate]byte // both numbers in full length, RFC 7518 section 3.4
	r.FillBytes(signature[:coordinate])
	s.FillBytes(signature[coordinate:])
	return signed + "." + base64.RawURLEncoding.EncodeToString(signature[:]), nil
}

type keySet struct {
	Keys []publicKey `json:"keys"`
}

type publicKey struct {
	Use       string `json:"use"`
	KeyType   string `json:"kty"`
	KeyID     string `json:"kid"`
	Curve     string `json:"crv"`
	Algorithm string `json:"alg"`
	X         string `json:"x"`
	Y         string `json:"y"`
}

func (k *signingKey) jwks() ([]byte, error) {
	point, err := k.private.PublicKey.Bytes() // 4, x, y
	if err != nil {
		return nil, err
	}
	return json.Marshal(keySet{Keys: []publicKey{{
		Use:       "sig",
		KeyType:   "EC",
		KeyID:     k.id,
		Curve:     "P-256",
		Algorithm: "ES256",
		X:         base64.RawURLEncoding.EncodeToString(point[1 : 1+coordinate]),
		Y:         base64.RawURLEncoding.EncodeToString(point[1+coordinate:]),
	}}})
}
