package store

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/volume/plugins/image/internal/layers"
)

// version is the version of all records. A directory whose record has another one is made anew.
const version = 1

type layerRecord struct {
	Version int `json:"version"`
	layers.Layer
	// From are the repositories that have sent it.
	From []string `json:"from"`
}

func (s *Store) record(kind, name string) string {
	return filepath.Join(s.Dir, kind, name+".json")
}

// each calls f with the names of all records of a kind.
func (s *Store) each(kind string, f func(name string) error) error {
	entries, err := os.ReadDir(filepath.Join(s.Dir, kind))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if name, is := strings.CutSuffix(e.Name(), ".json"); is && err == nil && !durable.IsTemp(e.Name()) {
			err = f(name)
		}
	}
	return err
}

// read reads a record, and reports whether there is a complete one of this version.
func (s *Store) read(kind, name string, into any) (bool, error) {
	data, err := os.ReadFile(s.record(kind, name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	var v struct{ Version int }
	if json.Unmarshal(data, &v) != nil || v.Version != version || json.Unmarshal(data, into) != nil {
		return false, nil
	}
	return true, nil
}

func (s *Store) write(kind, name string, record any) error {
	data, err := json.Marshal(record)
	if err != nil {
		return err
	}
	return durable.WriteFile(s.record(kind, name), append(data, '\n'), 0o600)
}
