package ceph

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
)

// KeySource is where a volume's key is: in a secret if it has a name, else in a file of the node.
type KeySource struct {
	// Field is the source in a manifest, such as "cephfs".
	Field string
	// Secret and Namespace are the secret's; an inline volume's is in the pod's namespace.
	Secret, Namespace string
	// File is the file, and FileField the field that names it.
	File, FileField string
	// User is whose key it is, without "client.".
	User string
	// IsInline says that a pod has the volume in its own manifest.
	IsInline bool
}

// Files are a node's files with keys.
type Files struct {
	// Dir has them; empty: /etc/ceph. Links lead nowhere else.
	Dir string
	// Inline lets each pod of the node use them, and thereby all that the users of these keys
	// may do. Without it only PersistentVolumes name files.
	Inline bool
}

const (
	defaultDir  = "/etc/ceph"
	maxKeyFile  = 64 << 10
	maxKeyBytes = 1 << 10
)

// Key returns the key. The errors have nothing of it, and nothing of what a file holds instead.
// They have done nothing.
func (s KeySource) Key(ctx context.Context, host volume.VolumeHost, files Files, podNamespace string) (string, error) {
	key, err := s.read(ctx, host, files, podNamespace)
	return key, volume.NothingDone(err)
}

func (s KeySource) read(ctx context.Context, host volume.VolumeHost, files Files, podNamespace string) (string, error) {
	if s.Secret == "" {
		return s.fromFile(files)
	}
	secrets, err := volume.Role[volume.SecretGetter](host)
	if err != nil {
		return "", err
	}
	namespace := s.Namespace
	if s.IsInline {
		namespace = podNamespace
	}
	if namespace == "" {
		return "", volume.Invalid(s.Field+".secretRef.namespace", "is missing")
	}
	secret, err := secrets.GetSecret(ctx, namespace, s.Secret)
	if err != nil {
		return "", fmt.Errorf("the secret with the key of Ceph's user %s: %w", s.User, err)
	}
	return s.fromSecret(secret)
}

// fromSecret takes the entry "key", or the only one. Of several without that name Kubernetes
// takes any.
func (s KeySource) fromSecret(secret *v1.Secret) (string, error) {
	value, ok := secret.Data["key"]
	if !ok {
		if len(secret.Data) != 1 {
			return "", volume.Invalid(s.Field+".secretRef", "names secret %s/%s, which has %d entries and none of the name key", secret.Namespace, secret.Name, len(secret.Data))
		}
		value = slices.Collect(maps.Values(secret.Data))[0]
	}
	key := string(bytes.TrimSpace(value))
	if !isKey(key) {
		return "", volume.Invalid(s.Field+".secretRef", "names secret %s/%s, which holds no key of Ceph's, as \"ceph auth get-key client.%s\" prints it", secret.Namespace, secret.Name, s.User)
	}
	return key, nil
}

// fromFile reads the key of the user from a file: the key alone, or a keyring.
func (s KeySource) fromFile(files Files) (string, error) {
	field := s.Field + "." + s.FileField
	if s.IsInline && !files.Inline {
		return "", volume.Invalid(s.Field+".secretRef", "is missing: this node does not lend the keys of its files to pods; put the key of user %s into a secret", s.User)
	}
	dir := files.Dir
	if dir == "" {
		dir = defaultDir
	}
	rel, err := filepath.Rel(dir, s.File)
	if err != nil || !filepath.IsAbs(s.File) || !filepath.IsLocal(rel) {
		return "", volume.Invalid(field, "%.128q is not in %s, where this node has its keys", s.File, dir)
	}
	text, err := readIn(dir, rel)
	if err != nil {
		return "", fmt.Errorf("the key of Ceph's user %s: %w", s.User, err)
	}
	key := keyIn(text, s.User)
	if !isKey(key) {
		return "", volume.Invalid(field, "%.128q holds no key for user %s", s.File, s.User)
	}
	return key, nil
}

// readIn reads a regular file below dir that root, or the agent's user, alone can write.
func readIn(dir, rel string) ([]byte, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err := root.OpenFile(rel, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, &os.PathError{Op: "fstat", Path: f.Name(), Err: err}
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, fmt.Errorf("%s is no regular file", f.Name())
	case st.Uid != 0 && int(st.Uid) != os.Geteuid(), st.Mode&0o022 != 0:
		return nil, fmt.Errorf("%s can be changed by others than root", f.Name())
	}
	text, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	if err == nil && len(text) > maxKeyFile {
		err = fmt.Errorf("%s is longer than %d bytes", f.Name(), maxKeyFile)
	}
	return text, err
}

// keyIn returns the key of a user in a keyring, or a text that is the key; "" if there is none.
func keyIn(text []byte, user string) string {
	if key := string(bytes.TrimSpace(text)); isKey(key) {
		return key
	}
	section, key := "", ""
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, maxKeyFile+1)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if strings.HasPrefix(line, "[") && strings.HasSuffix(line, "]") {
			section = strings.TrimSpace(line[1 : len(line)-1])
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		if ok && section == "client."+user && strings.TrimSpace(name) == "key" {
			key = strings.Trim(strings.TrimSpace(value), `"`)
		}
	}
	return key
}

// isKey reports whether a text is a CryptoKey of Ceph's: type, time of creation (eight bytes),
// length and bytes of the key, in base64 and little-endian.
func isKey(text string) bool {
	const head = 2 + 8 + 2
	if len(text) > maxKeyBytes || strings.ContainsAny(text, "\r\n") {
		return false
	}
	raw, err := base64.StdEncoding.DecodeString(text)
	return err == nil && len(raw) > head && int(binary.LittleEndian.Uint16(raw[head-2:])) == len(raw)-head
}
