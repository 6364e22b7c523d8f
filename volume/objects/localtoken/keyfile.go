package localtoken

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"

	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/volume"
)

// ErrKeyFile says that the key file cannot be used or made. The subject of the
// [volume.Failure] is its path. The error never shows the file's contents.
const ErrKeyFile volume.Cause = "the token key file cannot be used"

// refusedKeyFile returns the error for a key file. The advice and err may be missing.
func refusedKeyFile(path, reason, advice string, err error) error {
	text := fmt.Sprintf("the token key file %s %s", path, reason)
	if err != nil {
		text += ": " + err.Error()
	}
	return &volume.Failure{Cause: ErrKeyFile, Subject: path, What: text, Next: advice, Err: err}
}

const (
	pemType = "PRIVATE KEY" // PKCS #8
	// maxKeyFile is many times the size in bytes of a P-256 key.
	maxKeyFile = 16 << 10
	// adviseNew ends the advice for a file that cannot be repaired.
	adviseNew = "to have a new key made, move the file away; tokens issued until now then no longer verify"
)

// readOrCreateKey returns the key at path, and makes one if there is none.
// Several goroutines and processes may do so at once. All get the same key: the
// first creates the file, and the others read it.
func readOrCreateKey(path string) (*ecdsa.PrivateKey, error) {
	key, err := readKey(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	if err := createKey(path); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, refusedKeyFile(path, "cannot be made", "", err)
	}
	return readKey(path)
}

func createKey(path string) error {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return err
	}
	return durable.Create(path, pem.EncodeToMemory(&pem.Block{Type: pemType, Bytes: der}), 0o600)
}

// readKey returns an error that matches fs.ErrNotExist only if there is no file.
func readKey(path string) (*ecdsa.PrivateKey, error) {
	data, err := readKeyFile(path)
	if err != nil {
		return nil, err
	}
	block, rest := pem.Decode(data)
	if block == nil || block.Type != pemType || len(bytes.TrimSpace(rest)) > 0 {
		return nil, refusedKeyFile(path, "does not hold one private key in PEM form (PKCS #8)", adviseNew, nil)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	key, ok := parsed.(*ecdsa.PrivateKey)
	if err != nil || !ok || key.Curve != elliptic.P256() {
		return nil, refusedKeyFile(path, "does not hold an ECDSA key of the curve P-256", adviseNew, nil)
	}
	return key, nil
}
