package staticpods

import (
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/durable"
)

// adopted are the UIDs of static pods that a kubelet had started: it makes them from a
// manifest in another way. They are kept in a file by what would be their UIDs here, so
// that a changed manifest is another pod.
type adopted struct {
	file    string
	running map[types.NamespacedName]types.UID // each is taken once
	known   map[types.UID]types.UID
}

// readAdopted reads the file, if there is one.
func readAdopted(file string, running map[types.NamespacedName]types.UID) (*adopted, error) {
	a := &adopted{file: file, running: make(map[types.NamespacedName]types.UID), known: make(map[types.UID]types.UID)}
	maps.Copy(a.running, running)
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return a, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &a.known)
	}
	for _, taken := range a.known {
		maps.DeleteFunc(a.running, func(_ types.NamespacedName, uid types.UID) bool { return uid == taken })
	}
	return a, err
}

// uid returns the UID of the pod of that name whose manifest has a hash. An error says
// that it is not remembered for the next start.
func (a *adopted) uid(name types.NamespacedName, hash types.UID) (types.UID, error) {
	if uid, ok := a.known[hash]; ok {
		return uid, nil
	}
	uid, ok := a.running[name]
	if !ok {
		return hash, nil
	}
	delete(a.running, name)
	a.known[hash] = uid
	text, err := json.Marshal(a.known)
	if err != nil {
		return uid, err
	}
	return uid, durable.WriteFile(a.file, text, 0o600)
}
