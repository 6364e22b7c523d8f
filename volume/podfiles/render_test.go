package podfiles_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/testenv/noleak"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fileset"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/podfiles"
)

func TestMain(m *testing.M) { noleak.Main(m) }

// storeOf returns a store with these objects.
func storeOf(t testing.TB, all ...metav1.Object) *objects.Store {
	t.Helper()
	store := objects.NewStore()
	for _, o := range all {
		if _, err := store.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	return store
}

func meta(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "shop", Name: name} }

func podWith(volumes ...v1.Volume) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: meta("web"), Spec: v1.PodSpec{
		Volumes:    volumes,
		Containers: []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceMemory: resource.MustParse("64Mi")}}}},
	}}
	pod.UID, pod.Labels = "uid-1", map[string]string{"app": "web"}
	return pod
}

func configMapVolume(name string, items ...v1.KeyToPath) v1.Volume {
	return v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: name}, Items: items}}}
}

func secretVolume(name string) v1.Volume {
	return v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: name, DefaultMode: new(int32(0o400))}}}
}

func projectedVolume(sources ...v1.VolumeProjection) v1.Volume {
	return v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: sources}}}
}

// issuer issues tokens that say what was asked for, and live for a time.
type issuer struct {
	life time.Duration

	mu     sync.Mutex
	issued int
	fails  error
}

func (i *issuer) refuse(err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.fails = err
}

func (i *issuer) RequestToken(_ context.Context, namespace, account string, r *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.fails != nil {
		return nil, i.fails
	}
	i.issued++
	answer := r.DeepCopy()
	answer.Status.Token = fmt.Sprintf("%s/%s for %v to %s %s, %d s, no. %d", namespace, account, r.Spec.Audiences, r.Spec.BoundObjectRef.Name, r.Spec.BoundObjectRef.UID, *r.Spec.ExpirationSeconds, i.issued)
	answer.Status.ExpirationTimestamp = metav1.NewTime(time.Now().Add(i.life))
	return answer, nil
}

func show(s *podfiles.Set) (lines []string) {
	for _, p := range s.Paths() {
		f := s.Files[p]
		line := fmt.Sprintf("%s %04o %q", p, f.Mode, f.Data)
		if f.UID != nil {
			line += fmt.Sprintf(" uid=%d", *f.UID)
		}
		if f.GID != nil {
			line += fmt.Sprintf(" gid=%d", *f.GID)
		}
		lines = append(lines, line)
	}
	return lines
}

// Each kind of volume gives its files, with modes and owners as the plugins have them.
func TestRender(t *testing.T) {
	store := storeOf(t,
		&v1.ConfigMap{ObjectMeta: meta("app"), Data: map[string]string{"a.conf": "x=1"}, BinaryData: map[string][]byte{"logo": {0xff, 0}}},
		&v1.Secret{ObjectMeta: meta("tls"), Data: map[string][]byte{"key": []byte("s3cret")}})
	withGroup := podWith(projectedVolume(
		v1.VolumeProjection{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token", Audience: "vault", ExpirationSeconds: new(int64(600))}},
		v1.VolumeProjection{Secret: &v1.SecretProjection{LocalObjectReference: v1.LocalObjectReference{Name: "tls"}}},
		v1.VolumeProjection{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: v1.LocalObjectReference{Name: "none"}, Optional: new(true)}}))
	withGroup.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: new(int64(2000)), RunAsUser: new(int64(1000))}
	for name, tc := range map[string]struct {
		pod     *v1.Pod
		options podfiles.Options
		want    []string
	}{
		"all keys of a config map": {pod: podWith(configMapVolume("app")), want: []string{`a.conf 0644 "x=1"`, `logo 0644 "\xff\x00"`}},
		"items, with modes and paths": {pod: podWith(configMapVolume("app", v1.KeyToPath{Key: "a.conf", Path: "etc/a", Mode: new(int32(0o600))})),
			want: []string{`etc/a 0600 "x=1"`}},
		"a secret": {pod: podWith(secretVolume("tls")), want: []string{`key 0400 "s3cret"`}},
		"a group":  {pod: podWith(secretVolume("tls")), options: podfiles.Options{FsGroup: new(int64(7))}, want: []string{`key 0440 "s3cret" gid=7`}},
		"the downward API": {pod: podWith(v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{Items: []v1.DownwardAPIVolumeFile{
			{Path: "labels", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.labels"}},
			{Path: "memory", ResourceFieldRef: &v1.ResourceFieldSelector{ContainerName: "c", Resource: "limits.memory", Divisor: resource.MustParse("1Mi")}},
		}}}}), want: []string{`labels 0644 "app=\"web\""`, `memory 0644 "64"`}},
		"a projection with the pod's own group": {pod: withGroup, want: []string{
			`key 0644 "s3cret" gid=2000`, `token 0640 "shop/default for [vault] to web uid-1, 600 s, no. 1" uid=1000 gid=2000`}},
	} {
		t.Run(name, func(t *testing.T) {
			before := tc.pod.DeepCopy()
			s, err := podfiles.Render(t.Context(), tc.pod, "v", podfiles.Sources{Objects: store, Tokens: &issuer{life: time.Hour}}, tc.options)
			if err != nil {
				t.Fatal(err)
			}
			if got := show(s); !slices.Equal(got, tc.want) {
				t.Errorf("files:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(tc.want, "\n"))
			}
			if !equalPods(before, tc.pod) {
				t.Error("the pod was changed")
			}
		})
	}
}

func equalPods(a, b *v1.Pod) bool {
	textA, _ := a.Marshal()
	textB, _ := b.Marshal()
	return bytes.Equal(textA, textB)
}

// A token's set says when it is due, and every set what it depends on.
func TestRenderSaysWhenAndWhatOf(t *testing.T) {
	store := storeOf(t, &v1.Secret{ObjectMeta: meta("tls"), Data: map[string][]byte{"key": []byte("x")}})
	pod := podWith(projectedVolume(
		v1.VolumeProjection{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token"}},
		v1.VolumeProjection{Secret: &v1.SecretProjection{LocalObjectReference: v1.LocalObjectReference{Name: "tls"}}},
		v1.VolumeProjection{DownwardAPI: &v1.DownwardAPIProjection{Items: []v1.DownwardAPIVolumeFile{{Path: "name", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}}}}}))
	start := time.Now()
	s, err := podfiles.Render(t.Context(), pod, "v", podfiles.Sources{Objects: store, Tokens: &issuer{life: time.Hour}}, podfiles.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if due := s.RefreshAfter.Sub(start); due < 47*time.Minute || due > 49*time.Minute {
		t.Errorf("due after %v, want 80 %% of an hour", due)
	}
	want := []volume.ObjectRef{volume.NewObjectRef("Secret", "shop", "tls"), volume.NewObjectRef("Pod", "shop", "web")}
	if !slices.Equal(s.DependsOn, want) {
		t.Errorf("depends on %v, want %v", s.DependsOn, want)
	}
}

// Errors say which pod, volume, object, key and field, and are of a kind that a program can
// tell; nothing secret is in them.
func TestRenderRefuses(t *testing.T) {
	store := storeOf(t, &v1.Secret{ObjectMeta: meta("tls"), Data: map[string][]byte{"key": []byte("s3cret")}})
	withItem := secretVolume("tls")
	withItem.Secret.Items = []v1.KeyToPath{{Key: "crt", Path: "crt"}}
	badPath := secretVolume("tls")
	badPath.Secret.Items = []v1.KeyToPath{{Key: "key", Path: "../key"}}
	certificate := projectedVolume(v1.VolumeProjection{PodCertificate: &v1.PodCertificateProjection{SignerName: "example.com/s", KeyType: "ED25519", CredentialBundlePath: "b"}})
	token := projectedVolume(v1.VolumeProjection{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token"}})
	is := func(target error) func(error) bool { return func(err error) bool { return errors.Is(err, target) } }
	for name, tc := range map[string]struct {
		pod    *v1.Pod
		volume string
		from   podfiles.Sources
		ctx    func(context.Context) context.Context
		is     func(error) bool
		says   []string
	}{
		"a missing object":       {pod: podWith(secretVolume("none")), is: is(volume.ErrNotFound), says: []string{`volume "v"`, `pod "shop/web"`, "secret", "shop/none"}},
		"a missing key":          {pod: podWith(withItem), is: func(err error) bool { return true }, says: []string{`key "crt"`, "secret.items[0]", "optional"}},
		"a path that leaves":     {pod: podWith(badPath), is: isType[*volume.InvalidSpecError], says: []string{"secret.items[0].path"}},
		"an emptyDir":            {pod: podWith(v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}), is: is(podfiles.ErrNoFiles), says: []string{`volume "v"`}},
		"a claim":                {pod: podWith(v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}), is: is(podfiles.ErrNoFiles)},
		"no such volume":         {pod: podWith(), is: isType[*volume.InvalidSpecError], says: []string{`no volume "v"`}},
		"no pod":                 {is: isType[*volume.InvalidSpecError]},
		"a certificate":          {pod: podWith(certificate), is: isType[*volume.MissingRoleError], says: []string{"projected.sources[0].podCertificate", "PodCertificates"}},
		"no source of tokens":    {pod: podWith(token), from: podfiles.Sources{Objects: store}, is: isType[*volume.MissingRoleError], says: []string{"Tokens"}},
		"no source of objects":   {pod: podWith(secretVolume("tls")), from: podfiles.Sources{Tokens: &issuer{}}, is: isType[*volume.MissingRoleError]},
		"an issuer that refuses": {pod: podWith(token), from: podfiles.Sources{Objects: store, Tokens: &issuer{fails: errors.New("no")}}, is: func(error) bool { return true }, says: []string{"projected.sources[0].serviceAccountToken", "shop/default"}},
		"a context that has ended": {pod: podWith(secretVolume("tls")), ctx: func(ctx context.Context) context.Context {
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			return ctx
		}, is: is(context.Canceled)},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			if tc.ctx != nil {
				ctx = tc.ctx(ctx)
			}
			if tc.from == (podfiles.Sources{}) {
				tc.from.Objects = store
			}
			s, err := podfiles.Render(ctx, tc.pod, "v", tc.from, podfiles.Options{})
			if s != nil || err == nil || !tc.is(err) {
				t.Fatalf("%v, %v", s, err)
			}
			if _, ok := errors.AsType[*volume.Error](err); !ok {
				t.Errorf("%T does not name the volume", err)
			}
			for _, part := range tc.says {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not say %q", err, part)
				}
			}
			if strings.Contains(err.Error(), "s3cret") {
				t.Errorf("the error shows a secret: %v", err)
			}
		})
	}
}

func isType[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

func exampleSet(t *testing.T) *podfiles.Set {
	t.Helper()
	return &podfiles.Set{Files: map[string]podfiles.File{
		"a":          {Data: []byte("one"), Mode: 0o644},
		"etc/b":      {Data: []byte("two s3cret"), Mode: 0o440, UID: new(int64(5)), GID: new(int64(6))},
		"etc/deep/c": {Mode: 0o600},
	}}
}

// FS is a file system as io/fs wants it, with the modes of the set.
func TestFS(t *testing.T) {
	s := exampleSet(t)
	files := s.FS()
	if err := fstest.TestFS(files, "a", "etc/b", "etc/deep/c"); err != nil {
		t.Error(err)
	}
	if err := fstest.TestFS((&podfiles.Set{}).FS()); err != nil {
		t.Errorf("an empty one: %v", err)
	}
	data, err := fs.ReadFile(files, "etc/b")
	if err != nil || string(data) != "two s3cret" {
		t.Errorf("%q, %v", data, err)
	}
	data[0] = 'X'
	if string(s.Files["etc/b"].Data) != "two s3cret" {
		t.Error("a reader can change the set")
	}
	if info, err := fs.Stat(files, "etc/b"); err != nil || info.Mode() != 0o440 || info.Size() != 10 {
		t.Errorf("%v, %v", info, err)
	}
	if _, err := fs.Stat(files, "none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("none: %v", err)
	}
}

// The archive has each directory before what is in it, and is the same each time.
func TestWriteTar(t *testing.T) {
	s := exampleSet(t)
	var first, second bytes.Buffer
	if err := errors.Join(s.WriteTar(&first), s.WriteTar(&second)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("twice, and not the same")
	}
	var got []string
	for archive := tar.NewReader(&first); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%c %s %04o %d:%d %q", h.Typeflag, h.Name, h.Mode, h.Uid, h.Gid, data))
	}
	want := []string{`5 etc/ 0755 0:0 ""`, `5 etc/deep/ 0755 0:0 ""`, `0 a 0644 0:0 "one"`, `0 etc/b 0440 5:6 "two s3cret"`, `0 etc/deep/c 0600 0:0 ""`}
	if !slices.Equal(got, want) {
		t.Errorf("entries:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if err := s.WriteTar(brokenPipe{}); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("a writer that fails: %v", err)
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// No way of printing a set shows what is in its files.
func TestPrintingShowsNoContents(t *testing.T) {
	s := exampleSet(t)
	for _, text := range []string{fmt.Sprint(s), fmt.Sprint(*s), fmt.Sprintf("%+v", s), fmt.Sprintf("%#v", s), fmt.Sprintf("%+v", s.Files["etc/b"]), fmt.Sprintf("%#v", s.Files), logged(s), logged(s.Files["etc/b"])} {
		if strings.Contains(text, "s3cret") || strings.Contains(text, "115, 51") || strings.Contains(text, "0x73, 0x33") || strings.Contains(text, base64.StdEncoding.EncodeToString(s.Files["etc/b"].Data)) {
			t.Errorf("it shows its contents: %s", text)
		}
	}
}

// logged is a line of a log in JSON.
func logged(value any) string {
	var line bytes.Buffer
	slog.New(slog.NewJSONHandler(&line, nil)).Info("a set", "value", value)
	return line.String()
}

// Paths that no set has are refused, and no call takes for ever for them.
func TestPathsOfASetMadeByHand(t *testing.T) {
	file := podfiles.File{Mode: 0o644}
	for name, s := range map[string]*podfiles.Set{
		"absolute":               {Files: map[string]podfiles.File{"/etc/a": file}},
		"leads out":              {Files: map[string]podfiles.File{"../a": file}},
		"not clean":              {Files: map[string]podfiles.File{"a//b": file}},
		"empty":                  {Files: map[string]podfiles.File{"": file}},
		"a file and a directory": {Files: map[string]podfiles.File{"a": file, "a/b": file}},
		"an absolute directory":  {Dirs: []string{"/a"}},
		"a directory of a file":  {Files: map[string]podfiles.File{"a": file}, Dirs: []string{"a"}},
		"a directory in a file":  {Files: map[string]podfiles.File{"a": file}, Dirs: []string{"a/b"}},
	} {
		var out bytes.Buffer
		err := s.WriteTar(&out)
		if _, ok := errors.AsType[*fileset.PathError](err); !ok || out.Len() > 0 {
			t.Errorf("%s: %v, and %d bytes were written", name, err, out.Len())
		}
		if err := fs.WalkDir(s.FS(), ".", func(_ string, _ fs.DirEntry, err error) error { return err }); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The volumes of a pod become one set, those without files too.
func TestPut(t *testing.T) {
	early, late := time.Unix(1, 0), time.Unix(2, 0)
	ref := volume.NewObjectRef("Secret", "shop", "tls")
	all := &podfiles.Set{}
	all.Put("tls", &podfiles.Set{Files: map[string]podfiles.File{"d/key": {Data: []byte("k"), Mode: 0o400}}, RefreshAfter: late, DependsOn: []volume.ObjectRef{ref}})
	all.Put("token", &podfiles.Set{Files: map[string]podfiles.File{"t": {}}, RefreshAfter: early, DependsOn: []volume.ObjectRef{ref}})
	all.Put("none", &podfiles.Set{})
	if got := all.Paths(); !slices.Equal(got, []string{"tls/d/key", "token/t"}) || !slices.Equal(all.Dirs, []string{"none"}) || !all.RefreshAfter.Equal(early) || len(all.DependsOn) != 1 {
		t.Errorf("%v, %q, %v, %v", all, all.Dirs, all.RefreshAfter, all.DependsOn)
	}
	var archive bytes.Buffer
	if err := all.WriteTar(&archive); err != nil {
		t.Fatal(err)
	}
	h, err := tar.NewReader(&archive).Next()
	if err != nil || h.Name != "none/" || h.Typeflag != tar.TypeDir {
		t.Errorf("the first entry is %v, %v", h, err)
	}
	if info, err := fs.Stat(all.FS(), "none"); err != nil || !info.IsDir() {
		t.Errorf("%v, %v", info, err)
	}
}

// Without owners, nothing is readable for the sake of a group that the files do not have.
func TestRenderWithoutOwners(t *testing.T) {
	token := v1.VolumeProjection{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token"}}
	secret := v1.VolumeProjection{Secret: &v1.SecretProjection{LocalObjectReference: v1.LocalObjectReference{Name: "tls"}, Items: []v1.KeyToPath{{Key: "key", Path: "key", Mode: new(int32(0o400))}}}}
	pod := podWith(projectedVolume(token, secret))
	pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: new(int64(2000))}
	from := podfiles.Sources{Objects: storeOf(t, &v1.Secret{ObjectMeta: meta("tls"), Data: map[string][]byte{"key": []byte("k")}}), Tokens: &issuer{life: time.Hour}}
	modes := func(o podfiles.Options) string {
		s, err := podfiles.Render(t.Context(), pod, "v", from, o)
		if err != nil {
			t.Fatal(err)
		}
		var text []string
		for _, p := range s.Paths() {
			f := s.Files[p]
			text = append(text, fmt.Sprintf("%s %04o %v %v", p, f.Mode, f.UID != nil, f.GID != nil))
		}
		return strings.Join(text, ", ")
	}
	if got, want := modes(podfiles.Options{}), "key 0440 false true, token 0640 false true"; got != want {
		t.Errorf("with owners: %s, want %s", got, want)
	}
	if got, want := modes(podfiles.Options{NoOwners: true}), "key 0400 false false, token 0600 false false"; got != want {
		t.Errorf("without: %s, want %s", got, want)
	}
}

// All that is missing in one source is said at once.
func TestRenderSaysAllThatIsMissing(t *testing.T) {
	store := storeOf(t, &v1.ConfigMap{ObjectMeta: meta("app")})
	_, err := podfiles.Render(t.Context(), podWith(configMapVolume("app", v1.KeyToPath{Key: "one", Path: "1"}, v1.KeyToPath{Key: "two", Path: "2"})), "v", podfiles.Sources{Objects: store}, podfiles.Options{})
	if err == nil || !strings.Contains(err.Error(), "one") || !strings.Contains(err.Error(), "two") {
		t.Errorf("%v", err)
	}
}

// Two items with one path are what the API takes: the last one is shown.
func TestItemsWithOnePath(t *testing.T) {
	store := storeOf(t, &v1.ConfigMap{ObjectMeta: meta("app"), Data: map[string]string{"one": "1", "two": "2"}})
	items := []v1.KeyToPath{{Key: "one", Path: "f"}, {Key: "two", Path: "f"}}
	s, err := podfiles.Render(t.Context(), podWith(configMapVolume("app", items...)), "v", podfiles.Sources{Objects: store}, podfiles.Options{})
	if err != nil || string(s.Files["f"].Data) != "2" {
		t.Errorf("%v, %v", s, err)
	}
	source := v1.VolumeProjection{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: v1.LocalObjectReference{Name: "app"}, Items: items}}
	if s, err := podfiles.Render(t.Context(), podWith(projectedVolume(source)), "v", podfiles.Sources{Objects: store}, podfiles.Options{}); err == nil {
		t.Errorf("a projected volume, of which the API refuses it: %v", s)
	}
}

// What Render returns belongs to the caller.
func TestASetIsTheCallersOwn(t *testing.T) {
	secret := &v1.Secret{ObjectMeta: meta("tls"), Data: map[string][]byte{"key": []byte("x")}}
	source := lent{secret}
	pod := podWith(secretVolume("tls"))
	s, err := podfiles.Render(t.Context(), pod, "v", podfiles.Sources{Objects: source}, podfiles.Options{FsGroup: new(int64(3))})
	if err != nil {
		t.Fatal(err)
	}
	f := s.Files["key"]
	f.Data[0], *f.GID = 'y', 4
	if string(secret.Data["key"]) != "x" {
		t.Error("the object was changed with the set")
	}
	if names := slices.Collect(maps.Keys(s.Files)); len(names) != 1 {
		t.Errorf("files %v", names)
	}
}

// lent lends its object, as an informer does.
type lent struct{ object metav1.Object }

func (l lent) Get(context.Context, volume.ObjectRef) (metav1.Object, error) { return l.object, nil }
