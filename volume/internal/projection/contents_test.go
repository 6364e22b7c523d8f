package projection_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/podvol/podvol/util/kubeapi"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
)

const pem = "-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n"

func bundle(name, signer, contents string, labels map[string]string) metav1.Object {
	return kubeapi.MakeTrustBundle(kubeapi.TrustBundle{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, SignerName: signer, PEM: contents,
	})
}

func projectBundle(p v1.ClusterTrustBundleProjection) v1.VolumeProjection {
	p.Path = "ca.pem"
	return v1.VolumeProjection{ClusterTrustBundle: &p}
}

func fill(h *fakehost.Host) {
	app := configMap("app", map[string]string{"a": "A", "b": "B"})
	app.BinaryData = map[string][]byte{"bin": {0, 0xff}}
	fixed := configMap("fixed", map[string]string{"f": "F"})
	fixed.Immutable = ptr.To(true)
	h.Add(app, fixed, secretObject("tls", map[string]string{"key": "K", "crt": "C"}),
		bundle("roots", "", pem, nil),
		bundle("s1", "example.com/signer", pem+"1\n", map[string]string{"team": "a"}),
		bundle("s2", "example.com/signer", pem+"2\n", map[string]string{"team": "b"}))
}

func TestContents(t *testing.T) {
	opt, mode := ptr.To(true), func(m int32) *int32 { return &m }
	app := func(change func(*v1.ConfigMapVolumeSource)) v1.VolumeSource {
		s := fromConfigMap("app")
		change(s.ConfigMap)
		return s
	}
	tls := func(change func(*v1.SecretVolumeSource)) v1.VolumeSource {
		s := fromSecret("tls")
		change(s.Secret)
		return s
	}
	tests := map[string]struct {
		source v1.VolumeSource
		want   map[string]string
	}{
		"all keys, data and binaryData": {fromConfigMap("app"), map[string]string{"a": "0644 A", "b": "0644 B", "bin": "0644 \x00\xff"}},
		"an immutable object":           {fromConfigMap("fixed"), map[string]string{"f": "0644 F"}},
		"default mode": {app(func(s *v1.ConfigMapVolumeSource) { s.DefaultMode = mode(0o400) }),
			map[string]string{"a": "0400 A", "b": "0400 B", "bin": "0400 \x00\xff"}},
		"items: paths, modes, one key twice": {app(func(s *v1.ConfigMapVolumeSource) {
			s.DefaultMode = mode(0o751)
			s.Items = []v1.KeyToPath{{Key: "a", Path: "x/y/a"}, {Key: "a", Path: "x/./b//", Mode: mode(0o440)}, {Key: "bin", Path: ".bin", Mode: mode(0o777)}}
		}), map[string]string{"x/y/a": "0751 A", "x/b": "0440 A", ".bin": "0777 \x00\xff"}},
		"a missing optional config map": {app(func(s *v1.ConfigMapVolumeSource) { s.Name = "nix"; s.Optional = opt }), map[string]string{}},
		"a missing optional config map with items": {app(func(s *v1.ConfigMapVolumeSource) {
			s.Name, s.Optional, s.Items = "nix", opt, []v1.KeyToPath{{Key: "a", Path: "a"}}
		}), map[string]string{}},
		"a missing key of an optional config map": {app(func(s *v1.ConfigMapVolumeSource) {
			s.Optional, s.Items = opt, []v1.KeyToPath{{Key: "nix", Path: "n"}, {Key: "b", Path: "b"}}
		}), map[string]string{"b": "0644 B"}},
		"an optional config map that is there": {app(func(s *v1.ConfigMapVolumeSource) { s.Name = "fixed"; s.Optional = opt }), map[string]string{"f": "0644 F"}},
		"a secret":                             {fromSecret("tls"), map[string]string{"key": "0644 K", "crt": "0644 C"}},
		"a secret's items": {tls(func(s *v1.SecretVolumeSource) {
			s.DefaultMode = mode(0o440)
			s.Items = []v1.KeyToPath{{Key: "key", Path: "private/key", Mode: mode(0o400)}, {Key: "crt", Path: "crt"}}
		}), map[string]string{"private/key": "0400 K", "crt": "0440 C"}},
		"a missing optional secret": {tls(func(s *v1.SecretVolumeSource) { s.SecretName = "nix"; s.Optional = opt }), map[string]string{}},
		"several sources": {fromSources(projectConfigMap("app", v1.KeyToPath{Key: "a", Path: "d/a"}), projectSecret("tls", v1.KeyToPath{Key: "key", Path: "d/k"}),
			v1.VolumeProjection{DownwardAPI: &v1.DownwardAPIProjection{Items: []v1.DownwardAPIVolumeFile{
				{Path: "name", Mode: mode(0o600), FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}}}}}),
			map[string]string{"d/a": "0644 A", "d/k": "0644 K", "name": "0600 web"}},
		"of two whole objects the later wins": {fromSources(projectConfigMap("app"), projectSecret("tls", v1.KeyToPath{Key: "key", Path: "a"})),
			map[string]string{"a": "0644 K", "b": "0644 B", "bin": "0644 \x00\xff"}},
		"a trust bundle by name": {fromSources(projectBundle(v1.ClusterTrustBundleProjection{Name: ptr.To("roots")})),
			map[string]string{"ca.pem": "0644 " + pem}},
		"trust bundles of a signer": {fromSources(projectBundle(v1.ClusterTrustBundleProjection{
			SignerName: ptr.To("example.com/signer"), LabelSelector: &metav1.LabelSelector{}})),
			map[string]string{"ca.pem": "0644 " + pem + "1\n" + pem + "2\n"}},
		"trust bundles by label": {fromSources(projectBundle(v1.ClusterTrustBundleProjection{
			SignerName: ptr.To("example.com/signer"), LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "b"}}})),
			map[string]string{"ca.pem": "0644 " + pem + "2\n"}},
		"a missing optional trust bundle": {fromSources(projectBundle(v1.ClusterTrustBundleProjection{Name: ptr.To("nix"), Optional: opt})),
			map[string]string{"ca.pem": "0644 "}},
		"no optional trust bundle without selector": {fromSources(projectBundle(v1.ClusterTrustBundleProjection{
			SignerName: ptr.To("example.com/signer"), Optional: opt})), map[string]string{"ca.pem": "0644 "}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, tc.source)
			fill(b.host)
			b.setUp()
			b.wantFiles(tc.want)
			b.tearDown()
			b.host.AssertTornDown(t)
		})
	}
}

func TestWhatIsMissingIsNamed(t *testing.T) {
	tests := map[string]struct {
		source   v1.VolumeSource
		want     []string
		notFound bool
	}{
		"config map": {fromConfigMap("nix"), []string{"configMap", "default/nix", "create it", "optional"}, true},
		"secret":     {fromSecret("nix"), []string{"secret", "default/nix", "create it", "optional"}, true},
		"key": {fromSources(projectConfigMap("app"), projectSecret("tls", v1.KeyToPath{Key: "key", Path: "k"}, v1.KeyToPath{Key: "nix", Path: "n"})),
			[]string{"projected.sources[1].secret.items[1]", "default/tls", `"nix"`, "add the key", "optional"}, false},
		"several at once": {fromSources(projectConfigMap("nix1"), projectSecret("nix2")), []string{"default/nix1", "default/nix2", "sources[0]", "sources[1]"}, true},
		"trust bundle":    {fromSources(projectBundle(v1.ClusterTrustBundleProjection{Name: ptr.To("nix")})), []string{"clusterTrustBundle", "ClusterTrustBundle nix", "create it"}, true},
		"trust bundles of a signer": {fromSources(projectBundle(v1.ClusterTrustBundleProjection{SignerName: ptr.To("example.com/signer")})),
			[]string{"clusterTrustBundle", "example.com/signer", "labelSelector"}, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, tc.source)
			fill(b.host)
			err := b.trySetUp(volume.MounterArgs{})
			if err == nil {
				t.Fatal("it was set up")
			}
			for _, part := range append(tc.want, `"vol"`, "default/web") {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%v\ndoes not name %s", err, part)
				}
			}
			if errors.Is(err, volume.ErrNotFound) != tc.notFound || volume.IsUncertain(err) {
				t.Errorf("%v: not found: %v, uncertain: %v", err, !tc.notFound, volume.IsUncertain(err))
			}
			b.host.AssertTornDown(t)
		})
	}
}

func TestAFailedLookUpIsNotAMissingObject(t *testing.T) {
	source := fromConfigMap("app")
	source.ConfigMap.Optional = ptr.To(true)
	b := newBench(t, source)
	boom := errors.New("boom")
	b.host.InjectRole(fakehost.RoleFault{Err: boom})
	err := b.trySetUp(volume.MounterArgs{})
	if !errors.Is(err, boom) || !strings.Contains(err.Error(), "default/app") {
		t.Errorf("%v", err)
	}
}

func TestFsGroupAndFsUser(t *testing.T) {
	uid, gid := ptr.To(int64(os.Getuid())), ptr.To(int64(os.Getgid()))
	source := fromSources(projectToken("token"), projectBundle(v1.ClusterTrustBundleProjection{Name: ptr.To("roots")}),
		projectSecret("tls", v1.KeyToPath{Key: "key", Path: "d/none", Mode: ptr.To[int32](0)}, v1.KeyToPath{Key: "crt", Path: "open"}))
	tests := map[string]struct {
		args                     volume.MounterArgs
		own, none, open, dirMode os.FileMode
	}{
		"neither": {volume.MounterArgs{}, 0o644, 0, 0o644, 0o755},
		"user":    {volume.MounterArgs{FsUser: uid}, 0o600, 0, 0o644, 0o755},
		"group":   {volume.MounterArgs{FsGroup: gid}, 0o640, 0o440, 0o644, 0o775 | os.ModeSetgid},
		"both":    {volume.MounterArgs{FsUser: uid, FsGroup: gid}, 0o640, 0o440, 0o644, 0o775 | os.ModeSetgid},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, source)
			fill(b.host)
			if err := b.trySetUp(tc.args); err != nil {
				t.Fatal(err)
			}
			for file, want := range map[string]os.FileMode{"token": tc.own, "ca.pem": tc.own, "d/none": tc.none, "open": tc.open, ".": tc.dirMode | os.ModeDir} {
				info, err := os.Stat(b.dir() + "/" + file)
				if err != nil {
					t.Fatal(err)
				}
				if info.Mode() != want {
					t.Errorf("%s has mode %v, want %v", file, info.Mode(), want)
				}
			}
		})
	}
}

// Of user, defaultUser and, for tokens, the pod's user, the first that is set
// owns a file.
func TestUsersOfFiles(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Log("only root can give files away; here they go to the one who has them")
	}
	me := int64(os.Getuid())
	other := func(uid int64) *int64 {
		if me != 0 {
			return &me
		}
		return &uid
	}
	token, plain := projectToken("token"), projectToken("plain")
	key := v1.KeyToPath{Key: "key", Path: "key"}
	if !kubeapi.Set(token.ServiceAccountToken, "User", other(1)) || !kubeapi.Set(&key, "User", other(2)) {
		t.Skip("this minor of k8s.io/api has no users of files")
	}
	source := fromSources(token, plain, projectSecret("tls", key, v1.KeyToPath{Key: "crt", Path: "crt"}))
	tests := map[string]struct {
		defaultUser *int64
		want        map[string]*int64
	}{
		"without default": {nil, map[string]*int64{"token": other(1), "plain": other(4), "key": other(2), "crt": &me}},
		"with default":    {other(3), map[string]*int64{"token": other(1), "plain": other(3), "key": other(2), "crt": other(3)}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			source := *source.DeepCopy()
			kubeapi.Set(source.Projected, "DefaultUser", tc.defaultUser)
			b := newBench(t, source)
			fill(b.host)
			if err := b.trySetUp(volume.MounterArgs{FsUser: other(4)}); err != nil {
				t.Fatal(err)
			}
			for file, want := range tc.want {
				info, err := os.Stat(b.dir() + "/" + file)
				if err != nil {
					t.Fatal(err)
				}
				if got := int64(statOf(info).UID); got != *want {
					t.Errorf("%s belongs to %d, want %d", file, got, *want)
				}
			}
		})
	}
}

// Only root can give files away.
func TestOwners(t *testing.T) {
	b := newBench(t, fromSources(projectToken("token"), projectSecret("tls")))
	fill(b.host)
	err := b.trySetUp(volume.MounterArgs{FsUser: ptr.To[int64](1234), FsGroup: ptr.To[int64](5678)})
	if os.Geteuid() != 0 {
		if err == nil || volume.IsUncertain(err) {
			t.Errorf("%v", err)
		}
		b.host.AssertTornDown(t)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string][2]uint32{"token": {1234, 5678}, "key": {0, 5678}} {
		info, err := os.Stat(b.dir() + "/" + file)
		if err != nil {
			t.Fatal(err)
		}
		if st := statOf(info); [2]uint32{st.UID, st.GID} != want {
			t.Errorf("%s belongs to %d:%d, want %v", file, st.UID, st.GID, want)
		}
	}
}

// A role that the host lacks matters only to the source that needs it.
func TestMissingRoles(t *testing.T) {
	allocatable := v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{Items: []v1.DownwardAPIVolumeFile{
		{Path: "cpu", ResourceFieldRef: &v1.ResourceFieldSelector{ContainerName: "main", Resource: "limits.cpu"}}}}}
	tests := map[string]struct {
		source v1.VolumeSource
		take   func(*fakehost.Host)
	}{
		"volume.SecretGetter":            {fromSecret("tls"), func(h *fakehost.Host) { h.Secrets = nil }},
		"volume.ConfigMapGetter":         {fromConfigMap("app"), func(h *fakehost.Host) { h.ConfigMaps = nil }},
		"volume.TokenRequester":          {fromSources(projectToken("t")), func(h *fakehost.Host) { h.Tokens = nil }},
		"volume.TrustBundleGetter":       {fromSources(projectBundle(v1.ClusterTrustBundleProjection{Name: ptr.To("roots")})), func(h *fakehost.Host) { h.TrustBundles = nil }},
		"volume.PodCertificateRequester": {fromSources(v1.VolumeProjection{PodCertificate: projectCertificate("ED25519")}), func(h *fakehost.Host) { h.PodCertificates = nil }},
		"volume.AllocatableGetter":       {allocatable, func(h *fakehost.Host) { h.Allocatable = nil }},
	}
	for role, tc := range tests {
		t.Run(role, func(t *testing.T) {
			b := newBench(t, tc.source)
			fill(b.host)
			tc.take(b.host)
			b.pod.Spec.Containers = []v1.Container{{Name: "main"}}
			err := b.trySetUp(volume.MounterArgs{})
			missing, ok := errors.AsType[*volume.MissingRoleError](err)
			if !ok || missing.Role != role || volume.IsUncertain(err) {
				t.Fatalf("%v", err)
			}
			b.host.AssertTornDown(t)
			if role == "volume.SecretGetter" {
				return
			}
			// Another volume on the same host does not need the role.
			if err := newBenchOn(b, fromSecret("tls")).trySetUp(volume.MounterArgs{}); err != nil {
				t.Error(err)
			}
		})
	}
}

func newBenchOn(b *bench, source v1.VolumeSource) *bench {
	b.Helper()
	other := &bench{TB: b.TB, host: b.host, plugin: pluginOf(source)}
	if err := other.plugin.Init(b.host); err != nil {
		b.Fatal(err)
	}
	other.use(fakehost.Pod("other", v1.Volume{Name: "vol", VolumeSource: source}))
	return other
}
