package rbd

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/volume/internal/podmount"
	"github.com/podvol/podvol/volume/plugins/rbd/internal/krbd"
)

// record says which mapping is this node's, before it is made and until it is gone. It has no
// secret.
type record struct {
	Monitors                  []string
	Pool, Image, User, FSType string
	ReadOnly, Block           bool
	// Token is the mapping's.
	Token string
	// Key tells the key from others.
	Key string
}

// newRecord returns the record of a mapping that is to be made.
func (s *source) newRecord(key string, isBlock bool) *record {
	var b [16]byte
	rand.Read(b[:]) // which never fails
	r := &record{Monitors: s.addresses(), Pool: s.pool, Image: s.image, User: s.key.User, FSType: s.fsType,
		ReadOnly: s.deviceReadOnly, Block: isBlock, Token: hex.EncodeToString(b[:])}
	r.Key = r.markOf(s.key.User, key)
	return r
}

// markOf is Key for a user and a key. Nothing is learned of a key by it: keys have 128 random bits.
func (r *record) markOf(user, key string) string {
	sum := sha256.Sum256([]byte(r.Token + " " + user + " " + key))
	return hex.EncodeToString(sum[:])
}

// readRecord reads a record; ok: there is one.
func readRecord(file string) (r *record, ok bool, err error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err == nil {
		r = &record{}
		err = json.Unmarshal(text, r)
		if err == nil && !krbd.IsToken(r.Token) {
			err = errors.New("it has no token")
		}
		if err != nil {
			err = fmt.Errorf("%s is no record of a mapped image: unmap the image that /sys/bus/rbd/devices shows, if no other has it, and remove the file: %w", file, err)
		}
	}
	return r, err == nil, err
}

func (r *record) write(file string) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if _, err := podmount.MakeDir(filepath.Dir(file), 0o750); err != nil {
		return err
	}
	return durable.WriteFile(file, append(text, '\n'), 0o600)
}

// removeRecord removes a record; it may be missing.
func removeRecord(file string) error {
	err := durable.Remove(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
