package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"

	"github.com/podvol/podvol/util/durable"
)

type useRecord struct {
	Version int    `json:"version"`
	Digest  string `json:"digest"`
	Ref     string `json:"ref"`
	PodUID  string `json:"podUID"`
	Volume  string `json:"volume"`
}

// useName names the use of a volume, whatever characters its own name has.
func useName(podUID, name string) string {
	sum := sha256.Sum256([]byte(podUID + "\x00" + name))
	return hex.EncodeToString(sum[:16])
}

// Use records that a volume shows an image. The lock of [Store.Lock] must be held since the
// image was found or pulled.
func (s *Store) Use(image Image, ref, podUID, name string) error {
	return s.write("uses", useName(podUID, name), useRecord{Version: version, Digest: image.Digest, Ref: ref, PodUID: podUID, Volume: name})
}

// Used returns the digest of the image that a volume shows, and its reference with that
// digest; both are empty where there is no record.
func (s *Store) Used(podUID, name string) (digest, ref string, err error) {
	var u useRecord
	_, err = s.read("uses", useName(podUID, name), &u)
	return u.Digest, u.Ref, err
}

// UsedBy returns the references, with digests, that a pod's volumes show.
func (s *Store) UsedBy(podUID string) (map[string]string, error) {
	found := make(map[string]string)
	err := s.each("uses", func(name string) error {
		var u useRecord
		has, err := s.read("uses", name, &u)
		if has && u.PodUID == podUID {
			found[u.Volume] = u.Ref
		}
		return err
	})
	return found, err
}

// Release ends a use. It is idempotent.
func (s *Store) Release(ctx context.Context, podUID, name string) error {
	if _, err := os.Lstat(s.record("uses", useName(podUID, name))); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	unlock, err := s.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	digest, _, err := s.Used(podUID, name)
	if err != nil {
		return err
	}
	if err := s.touch(ctx, digest); err != nil {
		return err
	}
	return durable.Remove(s.record("uses", useName(podUID, name)))
}
