//go:build linux

package localtoken_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects/localtoken"
)

func pkcs8(t *testing.T, key any) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

func ecKey(t *testing.T, curve elliptic.Curve) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return pkcs8(t, key)
}

func write(t *testing.T, path string, data []byte, mode fs.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func TestKeyIsMadeWhenNeeded(t *testing.T) {
	old := unix.Umask(0)
	t.Cleanup(func() { unix.Umask(old) })
	dir := t.TempDir()
	path := filepath.Join(dir, "token.key")
	issuer := localtoken.New(path)
	if left := entries(t, dir); len(left) != 0 {
		t.Fatalf("New made %v", left)
	}
	result, err := issuer.RequestToken(t.Context(), "ns", "sa", &authenticationv1.TokenRequest{})
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("the key file is %v, %v; want a regular file 0600", info.Mode(), err)
	}
	if left := entries(t, dir); len(left) != 1 {
		t.Errorf("the directory holds %v", left)
	}
	// A token outlives the process that issued it.
	verify(t, localtoken.New(path), result.Status.Token)
}

func TestKeyIsReadOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	issuer := localtoken.New(path)
	first, err := issuer.JWKS(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	second, err := issuer.JWKS(t.Context())
	if err != nil || string(first) != string(second) {
		t.Errorf("the key changed under its issuer: %v", err)
	}
}

func TestOwnKeyIsUsed(t *testing.T) {
	for _, mode := range []fs.FileMode{0o600, 0o400} {
		path := filepath.Join(t.TempDir(), "key")
		data := ecKey(t, elliptic.P256())
		write(t, path, data, mode)
		issuer := localtoken.New(path)
		result, err := issuer.RequestToken(t.Context(), "ns", "sa", &authenticationv1.TokenRequest{})
		if err != nil {
			t.Fatal(err)
		}
		verify(t, issuer, result.Status.Token)
		if after, err := os.ReadFile(path); err != nil || string(after) != string(data) {
			t.Errorf("the user's own key was changed: %v", err)
		}
	}
}

func TestRefusedKeyFiles(t *testing.T) {
	good := ecKey(t, elliptic.P256())
	for _, tc := range []struct {
		name    string
		prepare func(t *testing.T, path string)
		want    string // in the message, beside the path
	}{
		{"readable by the group", func(t *testing.T, path string) { write(t, path, good, 0o640) }, "chmod 600"},
		{"readable by all", func(t *testing.T, path string) { write(t, path, good, 0o604) }, "chmod 600"},
		{"executable", func(t *testing.T, path string) { write(t, path, good, 0o700) }, "chmod 600"},
		{"setuid", func(t *testing.T, path string) { write(t, path, good, 0o600|fs.ModeSetuid) }, "chmod 600"},
		{"a link to a good key", func(t *testing.T, path string) {
			write(t, path+".real", good, 0o600)
			if err := os.Symlink(path+".real", path); err != nil {
				t.Fatal(err)
			}
		}, "symbolic link"},
		{"a dangling link", func(t *testing.T, path string) {
			if err := os.Symlink(path+".real", path); err != nil {
				t.Fatal(err)
			}
		}, "symbolic link"},
		{"a directory", func(t *testing.T, path string) {
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		}, "no regular file"},
		{"a pipe without writer", func(t *testing.T, path string) {
			if err := unix.Mkfifo(path, 0o600); err != nil {
				t.Fatal(err)
			}
		}, "no regular file"},
		{"empty", func(t *testing.T, path string) { write(t, path, nil, 0o600) }, "PEM"},
		{"truncated", func(t *testing.T, path string) { write(t, path, good[:len(good)/2], 0o600) }, "PEM"},
		{"no PEM", func(t *testing.T, path string) { write(t, path, []byte("s3cr3t"), 0o600) }, "PEM"},
		{"two keys", func(t *testing.T, path string) { write(t, path, slices.Concat(good, good), 0o600) }, "PEM"},
		{"another curve", func(t *testing.T, path string) { write(t, path, ecKey(t, elliptic.P384()), 0o600) }, "P-256"},
		{"an RSA key", func(t *testing.T, path string) {
			key, err := rsa.GenerateKey(rand.Reader, 2048)
			if err != nil {
				t.Fatal(err)
			}
			write(t, path, pkcs8(t, key), 0o600)
		}, "P-256"},
		{"huge", func(t *testing.T, path string) { write(t, path, make([]byte, 1<<20), 0o600) }, "too large"},
		{"in a missing directory", func(t *testing.T, path string) {
			if err := os.Remove(filepath.Dir(path)); err != nil {
				t.Fatal(err)
			}
		}, "does not exist"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "dir")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, "key")
			tc.prepare(t, path)
			result, err := localtoken.New(path).RequestToken(t.Context(), "ns", "sa", &authenticationv1.TokenRequest{})
			refused, ok := errors.AsType[*volume.Failure](err)
			if !ok || refused.Subject != path || !errors.Is(err, localtoken.ErrKeyFile) || result != nil {
				t.Fatalf("got %v, %v, want ErrKeyFile for %s", result, err, path)
			}
			if !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("%q lacks %q or the path", err, tc.want)
			}
			if strings.Contains(err.Error(), "s3cr3t") || strings.Contains(err.Error(), "PRIVATE KEY") {
				t.Errorf("the error shows what is in the file: %q", err)
			}
		})
	}
}

// The advice of the error puts it right, without a new issuer.
func TestRepairedKeyFileIsUsed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	write(t, path, ecKey(t, elliptic.P256()), 0o644)
	issuer := localtoken.New(path)
	if _, err := issuer.JWKS(t.Context()); err == nil {
		t.Fatal("a key that everybody can read was used")
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := issuer.JWKS(t.Context()); err != nil {
		t.Error(err)
	}
}

// Root could read a key of anybody's, but then its owner could sign as well.
func TestKeyOfAnotherUserIsRefused(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "key")
		write(t, path, ecKey(t, elliptic.P256()), 0o600)
		if err := os.Chown(path, 4711, -1); err != nil {
			if !errors.Is(err, unix.EINVAL) {
				t.Fatal(err)
			}
			return // a user namespace of one user has no other
		}
		_, err := localtoken.New(path).JWKS(t.Context())
		if !errors.Is(err, localtoken.ErrKeyFile) || !strings.Contains(err.Error(), "chown") {
			t.Errorf("err = %v", err)
		}
	})
}
