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
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/durable"
)

// KeyFileError says that the key file cannot be used or made. It never shows the
// file's content.
type KeyFileError struct {
	// Path is the key file.
	Path string
	// Reason says why. Advice says what to do.
	Reason, Advice string
	// Err is the underlying error, if any.
	Err error
}

func (e *KeyFileError) Error() string {
	text := fmt.Sprintf("the token key file %s %s", e.Path, e.Reason)
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	if e.Advice != "" {
		text += "; " + e.Advice
	}
	return text
}

// Unwrap returns the underlying error.
func (e *KeyFileError) Unwrap() error { return e.Err }

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
		return nil, &KeyFileError{Path: path, Reason: "cannot be made", Err: err}
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
		return nil, &KeyFileError{Path: path, Reason: "does not hold one private key in PEM form (PKCS #8)", Advice: adviseNew}
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	key, ok := parsed.(*ecdsa.PrivateKey)
	if err != nil || !ok || key.Curve != elliptic.P256() {
		return nil, &KeyFileError{Path: path, Reason: "does not hold an ECDSA key of the curve P-256", Advice: adviseNew}
	}
	return key, nil
}

// readKeyFile checks the file by its descriptor. So the file cannot be replaced
// in between. It does not wait for the writer of a pipe.
func readKeyFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, unix.ELOOP):
		return nil, &KeyFileError{Path: path, Reason: "is a symbolic link", Advice: "name the file itself, or " + adviseNew}
	case errors.Is(err, unix.ENXIO):
		return nil, &KeyFileError{Path: path, Reason: "is no regular file", Advice: adviseNew}
	case err != nil:
		return nil, &KeyFileError{Path: path, Reason: "cannot be opened", Err: err}
	}
	defer f.Close()
	if err := checkKeyFile(path, f); err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	if err != nil {
		return nil, &KeyFileError{Path: path, Reason: "cannot be read", Err: err}
	}
	if len(data) > maxKeyFile {
		return nil, &KeyFileError{Path: path, Reason: "is too large for a key", Advice: adviseNew}
	}
	return data, nil
}

func checkKeyFile(path string, f *os.File) error {
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
		return &KeyFileError{Path: path, Reason: "cannot be looked at", Err: err}
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return &KeyFileError{Path: path, Reason: "is no regular file", Advice: adviseNew}
	}
	if mode := stat.Mode & 0o7777; mode&^0o600 != 0 {
		return &KeyFileError{
			Path:   path,
			Reason: fmt.Sprintf("has permissions %#o, so others may know the key", mode),
			Advice: "if nobody else could read it, run chmod 600 on it; otherwise " + adviseNew,
		}
	}
	if uid := os.Geteuid(); stat.Uid != 0 && int(stat.Uid) != uid {
		return &KeyFileError{
			Path:   path,
			Reason: fmt.Sprintf("belongs to user %d, not to user %d who runs this", stat.Uid, uid),
			Advice: "if that user may know the key, run chown on it; otherwise " + adviseNew,
		}
	}
	return nil
}
