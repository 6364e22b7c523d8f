package localtoken_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"math/big"
	"os"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/podvol/podvol/volume/objects/localtoken"
)

// verify does what a stranger with the key set does, and returns the claims.
func verify(t *testing.T, issuer *localtoken.Issuer, token string) map[string]any {
	t.Helper()
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		t.Fatalf("the token has %d parts", len(parts))
	}
	var header map[string]string
	decodeJSON(t, parts[0], &header)
	if header["alg"] != "ES256" {
		t.Fatalf("header = %v", header)
	}
	public := publicKey(t, issuer, header["kid"])
	if !signedBy(public, parts[0]+"."+parts[1], decode(t, parts[2])) {
		t.Fatal("the signature does not verify")
	}
	var claims map[string]any
	decodeJSON(t, parts[1], &claims)
	return claims
}

func signedBy(public *ecdsa.PublicKey, signed string, signature []byte) bool {
	if len(signature) != 64 {
		return false
	}
	digest := sha256.Sum256([]byte(signed))
	r, s := new(big.Int).SetBytes(signature[:32]), new(big.Int).SetBytes(signature[32:])
	return ecdsa.Verify(public, digest[:], r, s)
}

func publicKey(t *testing.T, issuer *localtoken.Issuer, id string) *ecdsa.PublicKey {
	t.Helper()
	data, err := issuer.JWKS(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var set struct{ Keys []struct{ Kid, X, Y string } }
	if err := json.Unmarshal(data, &set); err != nil {
		t.Fatal(err)
	}
	for _, key := range set.Keys {
		if key.Kid != id {
			continue
		}
		point := append(append([]byte{4}, decode(t, key.X)...), decode(t, key.Y)...)
		public, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), point)
		if err != nil {
			t.Fatal(err)
		}
		return public
	}
	t.Fatalf("no key %q in %s", id, data)
	return nil
}

func decode(t *testing.T, text string) []byte {
	t.Helper()
	data, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func decodeJSON(t *testing.T, text string, into any) {
	t.Helper()
	if err := json.Unmarshal(decode(t, text), into); err != nil {
		t.Fatal(err)
	}
}

func entries(t *testing.T, dir string) []string {
	t.Helper()
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range all {
		names = append(names, e.Name())
	}
	return names
}

// Many signatures: one number in 256 begins with a zero byte, and zeros must
// keep their places. And every change to what is signed must show.
func TestSignatures(t *testing.T) {
	issuer := newIssuer(t)
	for range 2000 {
		result, err := issuer.RequestToken(t.Context(), "ns", "sa", &authenticationv1.TokenRequest{})
		if err != nil {
			t.Fatal(err)
		}
		verify(t, issuer, result.Status.Token)
	}
	result, err := issuer.RequestToken(t.Context(), "ns", "sa", &authenticationv1.TokenRequest{})
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(result.Status.Token, ".")
	var header map[string]string
	decodeJSON(t, parts[0], &header)
	public := publicKey(t, issuer, header["kid"])
	signed, signature := parts[0]+"."+parts[1], decode(t, parts[2])
	for n := range signed {
		altered := []byte(signed)
		altered[n] ^= 1
		if signedBy(public, string(altered), signature) {
			t.Fatalf("a token altered at byte %d still verifies", n)
		}
	}
}
