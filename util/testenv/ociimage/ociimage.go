// Package ociimage makes images for tests, and has them in a registry or in a directory (an
// OCI layout). What it makes can be wrong on purpose.
//
// Like every package below util, it carries no promise of compatibility.
package ociimage

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Entry is one entry of a layer's tar. A zero Type is a file, and a zero Mode is 0644, or
// 0755 of a directory.
type Entry struct {
	Name, Link, Content string
	Type                byte
	Mode                int64
	UID                 int
}

// Layer is a layer.
type Layer struct {
	Entries []Entry
	// Compress compresses the tar; nil: by gzip.
	Compress func([]byte) []byte
	// Blob is the layer as it is sent; nil: the entries.
	Blob []byte
	// MediaType and Title are those of a file that is a layer.
	MediaType, Title string
	// DiffID and Digest replace the true ones.
	DiffID, Digest string
	// Size, if not 0, replaces the true one.
	Size int64
}

// Registry has images. It is an [http.Handler] that answers as a registry does. Its zero
// value is empty.
type Registry struct {
	// User and Password are needed for each pull; empty: none are. Bearer asks for them at
	// a token service.
	User, Password string
	Bearer         bool
	// Intercept, if not nil, may answer a request itself, and returns true then.
	Intercept func(w http.ResponseWriter, r *http.Request) bool

	mu    sync.Mutex
	blobs map[string][]byte
	tags  map[string]string // digests of manifests by "path:tag"
	types map[string]string // media types of manifests
	asked []string

	config string
}

const (
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	indexType    = "application/vnd.oci.image.index.v1+json"
	configType   = "application/vnd.oci.image.config.v1+json"
	// LayerType is the media type of a compressed tar.
	LayerType = "application/vnd.oci.image.layer.v1.tar+gzip"
)

// Digest returns the digest of data.
func Digest(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Tar returns the tar of some entries.
func Tar(entries ...Entry) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Name: e.Name, Linkname: e.Link, Typeflag: e.Type, Mode: e.Mode, Uid: e.UID, Size: int64(len(e.Content))}
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		switch {
		case h.Mode == 0 && h.Typeflag == tar.TypeDir:
			h.Mode = 0o755
		case h.Mode == 0:
			h.Mode = 0o644
		}
		if err := w.WriteHeader(h); err != nil {
			panic(err)
		}
		if _, err := w.Write([]byte(e.Content)); err != nil {
			panic(err)
		}
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// Gzip compresses data.
func Gzip(data []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write(data)
	_ = w.Close()
	return b.Bytes()
}

type object map[string]any

// Add adds an image of some layers under a name such as "web:1", and returns its digest. An
// image of which a layer has a title is an artifact.
func (r *Registry) Add(name string, layers ...Layer) string {
	var parts []object
	var diffIDs []string
	config := configType
	for _, l := range layers {
		plain := Tar(l.Entries...)
		blob := l.Blob
		switch {
		case blob == nil && l.Compress != nil:
			blob = l.Compress(plain)
		case blob == nil:
			blob = Gzip(plain)
		}
		part := object{"mediaType": or(l.MediaType, LayerType), "digest": or(l.Digest, r.blob(blob)), "size": len(blob)}
		if l.Size != 0 {
			part["size"] = l.Size
		}
		if l.Digest != "" {
			r.put(l.Digest, blob)
		}
		if l.Title != "" {
			config = "application/vnd.oci.empty.v1+json"
			part["annotations"] = object{"org.opencontainers.image.title": l.Title}
		}
		parts = append(parts, part)
		diffIDs = append(diffIDs, or(l.DiffID, Digest(plain)))
	}
	data := encode(object{"rootfs": object{"type": "layers", "diff_ids": diffIDs}})
	r.config = Digest(data)
	manifest := encode(object{"schemaVersion": 2, "mediaType": manifestType, "layers": parts,
		"config": object{"mediaType": config, "digest": r.blob(data), "size": len(data)}})
	return r.manifest(name, manifestType, manifest)
}

// Config returns the digest of the configuration of the image that was added last.
func (r *Registry) Config() string { return r.config }

// AddIndex adds an index of images under a name, by their platforms such as "linux/amd64".
func (r *Registry) AddIndex(name string, digests map[string]string) string {
	var parts []object
	for platform, digest := range digests {
		system, processor, _ := strings.Cut(platform, "/")
		parts = append(parts, object{"mediaType": manifestType, "digest": digest, "size": 1, "platform": object{"os": system, "architecture": processor}})
	}
	return r.manifest(name, indexType, encode(object{"schemaVersion": 2, "mediaType": indexType, "manifests": parts}))
}

// AddManifest adds any text as a manifest.
func (r *Registry) AddManifest(name, text string) string {
	return r.manifest(name, manifestType, []byte(text))
}

func or(s, other string) string {
	if s != "" {
		return s
	}
	return other
}

func encode(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return data
}

func (r *Registry) blob(data []byte) string {
	digest := Digest(data)
	r.put(digest, data)
	return digest
}

func (r *Registry) put(digest string, data []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.blobs == nil {
		r.blobs, r.tags, r.types = make(map[string][]byte), make(map[string]string), make(map[string]string)
	}
	r.blobs[digest] = data
}

func (r *Registry) manifest(name, mediaType string, data []byte) string {
	digest := r.blob(data)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tags[name], r.types[digest] = digest, mediaType
	return digest
}

// WriteLayout writes all images into a directory. Their names there have the registry before
// them.
func (r *Registry) WriteLayout(tb testing.TB, dir, registry string) {
	tb.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	var index []object
	for name, digest := range r.tags {
		index = append(index, object{"mediaType": r.types[digest], "digest": digest, "size": len(r.blobs[digest]),
			"annotations": object{"org.opencontainers.image.ref.name": registry + "/" + name}})
	}
	files := map[string][]byte{"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`), "index.json": encode(object{"schemaVersion": 2, "manifests": index})}
	for digest, data := range r.blobs {
		files["blobs/sha256/"+strings.TrimPrefix(digest, "sha256:")] = data
	}
	for name, data := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			tb.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			tb.Fatal(err)
		}
	}
}

// Asked returns the requests so far that have text in them, as "GET /v2/…".
func (r *Registry) Asked(text string) (requests []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range r.asked {
		if strings.Contains(a, text) {
			requests = append(requests, a)
		}
	}
	return requests
}

// ServeHTTP implements [http.Handler].
func (r *Registry) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	r.mu.Lock()
	r.asked = append(r.asked, q.Method+" "+q.URL.Path)
	r.mu.Unlock()
	if r.Intercept != nil && r.Intercept(w, q) {
		return
	}
	if q.URL.Path == "/token" {
		r.token(w, q)
		return
	}
	if !r.allowed(q) {
		challenge := `Basic realm="test"`
		if r.Bearer {
			challenge = fmt.Sprintf(`Bearer realm="http://%s/token",service="test",scope="repository:x:pull"`, q.Host)
		}
		w.Header().Set("WWW-Authenticate", challenge)
		refuse(w, http.StatusUnauthorized, "UNAUTHORIZED", "authentication required")
		return
	}
	path, name, ok := cutLast(strings.TrimPrefix(q.URL.Path, "/v2/"), "/manifests/")
	if ok {
		r.serveManifest(w, q, path, name)
		return
	}
	_, digest, _ := cutLast(q.URL.Path, "/blobs/")
	r.serve(w, q, digest, "application/octet-stream")
}

func (r *Registry) serveManifest(w http.ResponseWriter, q *http.Request, path, name string) {
	digest := name
	r.mu.Lock()
	if !strings.Contains(name, ":") {
		digest = r.tags[path+":"+name]
	}
	mediaType := r.types[digest]
	r.mu.Unlock()
	w.Header().Set("Docker-Content-Digest", digest)
	r.serve(w, q, digest, mediaType)
}

func (r *Registry) serve(w http.ResponseWriter, q *http.Request, digest, mediaType string) {
	r.mu.Lock()
	data, ok := r.blobs[digest]
	r.mu.Unlock()
	if !ok {
		refuse(w, http.StatusNotFound, "MANIFEST_UNKNOWN", "manifest unknown")
		return
	}
	w.Header().Set("Content-Type", mediaType)
	from := 0
	if _, err := fmt.Sscanf(q.Header.Get("Range"), "bytes=%d-", &from); err == nil && from <= len(data) {
		w.WriteHeader(http.StatusPartialContent)
	}
	_, _ = w.Write(data[from:])
}

const token = "a-token"

func (r *Registry) allowed(q *http.Request) bool {
	if r.User == "" {
		return true
	}
	if r.Bearer {
		return q.Header.Get("Authorization") == "Bearer "+token
	}
	return r.isUser(q)
}

func (r *Registry) isUser(q *http.Request) bool {
	user, password, _ := q.BasicAuth()
	return user == r.User && password == r.Password
}

func (r *Registry) token(w http.ResponseWriter, q *http.Request) {
	if !r.isUser(q) {
		refuse(w, http.StatusUnauthorized, "UNAUTHORIZED", "wrong password")
		return
	}
	_, _ = w.Write(encode(object{"token": token}))
}

func refuse(w http.ResponseWriter, status int, code, message string) {
	w.WriteHeader(status)
	_, _ = w.Write(encode(object{"errors": []object{{"code": code, "message": message}}}))
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}
