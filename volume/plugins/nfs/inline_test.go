package nfs_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/plugins/nfs"
	"github.com/podvol/podvol/volume/podcheck"
	"github.com/podvol/podvol/volume/recyclerpod"
)

const (
	optionsOfVol1 = nfs.AnnotationMountOptions + "/vol1"
	makeVol1      = nfs.AnnotationMakeVolumeDirectory + "/vol1"
)

func newPluginWith(t *testing.T, policy ...nfs.ServerPolicy) (volume.VolumePlugin, *fakehost.Host) {
	t.Helper()
	h := fakehost.New(t)
	p := nfs.New(nfs.Config{Inline: nfs.InlinePolicy{Servers: policy}})
	if err := p.Init(h); err != nil {
		t.Fatal(err)
	}
	return p, h
}

// annotated returns pod u1 with annotations, given as key, value, key, value….
func annotated(keysAndValues ...string) *v1.Pod {
	p := pod("u1")
	p.Spec.Volumes = []v1.Volume{*inline("server", "/nfs").Volume}
	p.Annotations = make(map[string]string)
	for i := 0; i < len(keysAndValues); i += 2 {
		p.Annotations[keysAndValues[i]] = keysAndValues[i+1]
	}
	return p
}

// mountedWith sets a volume up and returns the options of the one mount.
func mountedWith(t *testing.T, p volume.VolumePlugin, h *fakehost.Host, spec *volume.Spec, pod *v1.Pod) ([]string, error) {
	t.Helper()
	m, err := p.NewMounter(spec, pod)
	if err != nil {
		t.Fatal(err)
	}
	h.Fake.ResetCalls()
	if err := m.SetUp(t.Context(), volume.MounterArgs{}); err != nil {
		if volume.IsUncertain(err) || len(h.Fake.Calls()) > 0 {
			t.Errorf("something was touched: %v; %v", err, h.Fake.Calls())
		}
		wantGone(t, h, m.GetPath())
		return nil, err
	}
	calls := h.Fake.Calls()
	if len(calls) != 1 || calls[0].Op != mount.OpMount {
		t.Fatalf("calls %v", calls)
	}
	tearDown(t, p, spec.Name(), pod.UID)
	return calls[0].Options, nil
}

func TestInlineOptionsUnderAPolicy(t *testing.T) {
	policy := []nfs.ServerPolicy{
		{Server: "server", Allow: []string{"vers=4.1", "vers=3", "vers=4", "minorversion", "nfsvers", "timeo", "soft", "hard", "exec", "ro", "rw", "sec=sys", "addr=10.0.0.9", "nconnect", "fsc"}, Defaults: []string{"nosuid", "noexec", "vers=4.2", "hard"}},
		{Server: "read.only", Allow: []string{"rw"}, Defaults: []string{"ro"}},
	}
	readOnly := func(s *volume.Spec) *volume.Spec { s.Volume.NFS.ReadOnly = true; return s }
	for name, tc := range map[string]struct {
		spec  *volume.Spec
		asked string
		want  []string
	}{
		"nothing asked":           {inline("server", "/nfs"), "", []string{"nosuid", "noexec", "vers=4.2", "hard"}},
		"spaces only":             {inline("server", "/nfs"), "  ", []string{"nosuid", "noexec", "vers=4.2", "hard"}},
		"asked wins":              {inline("server", "/nfs"), "vers=4.1,soft,exec", []string{"nosuid", "vers=4.1", "soft", "exec"}},
		"by another name":         {inline("server", "/nfs"), "nfsvers=4.0", []string{"nosuid", "noexec", "hard", "nfsvers=4.0"}},
		"in two parts":            {inline("server", "/nfs"), "minorversion=0,vers=4", []string{"nosuid", "noexec", "hard", "minorversion=0", "vers=4"}},
		"as asked, in order":      {inline("server", "/nfs"), "timeo=7, nconnect=2", []string{"nosuid", "noexec", "vers=4.2", "hard", "timeo=7", "nconnect=2"}},
		"twice":                   {inline("server", "/nfs"), "timeo=7,timeo=7,hard", []string{"nosuid", "noexec", "vers=4.2", "timeo=7", "hard"}},
		"exact":                   {inline("server", "/nfs"), "sec=sys,addr=10.0.0.9,fsc", []string{"nosuid", "noexec", "vers=4.2", "hard", "sec=sys", "addr=10.0.0.9", "fsc"}},
		"a read-only volume":      {readOnly(inline("server", "/nfs")), "ro,soft", []string{"ro", "nosuid", "noexec", "vers=4.2", "soft"}},
		"read-only is asked":      {inline("server", "/nfs"), "ro", []string{"nosuid", "noexec", "vers=4.2", "hard", "ro"}},
		"read-only by default":    {inline("read.only", "/nfs"), "", []string{"ro"}},
		"writable all the same":   {inline("read.only", "/nfs"), "rw", []string{"rw"}},
		"read-only once":          {readOnly(inline("read.only", "/nfs")), "", []string{"ro"}},
		"a server without policy": {inline("other", "/nfs"), "", nil},
		"case and dot of a name":  {inline("SERVER.", "/nfs"), "soft", []string{"nosuid", "noexec", "vers=4.2", "soft"}},
	} {
		t.Run(name, func(t *testing.T) {
			p, h := newPluginWith(t, policy...)
			got, err := mountedWith(t, p, h, tc.spec, annotated(optionsOfVol1, tc.asked))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestInlineOptionsRefused(t *testing.T) {
	policy := []nfs.ServerPolicy{{Server: "*.example.org", Allow: []string{"vers=4.1", "minorversion", "timeo", "sec=sys", "fsc", "rw", "hard", "soft"}}}
	for name, tc := range map[string]struct {
		server, asked string
		because       []string
	}{
		"no entry":              {"server", "timeo=7", []string{`mount option "timeo=7" of volume "vol1"`, `no entry for server "server"`, `{server: "server", allow: ["timeo=7"]}`}},
		"another value":         {"a.example.org", "vers=3", []string{`"vers=3"`, `policy for "*.example.org"`, `add "vers=3"`}},
		"not listed":            {"a.example.org", "nconnect=4", []string{`"nconnect=4"`}},
		"all that are refused":  {"a.example.org", "nconnect=4,timeo=3,vers=3", []string{`"nconnect=4"`, `"vers=3"`}},
		"another flavour":       {"a.example.org", "sec=krb5", []string{`"sec=krb5"`}},
		"a value for a word":    {"a.example.org", "fsc=mine", []string{`"fsc=mine"`}},
		"never":                 {"a.example.org", "bind", []string{`"bind"`, "no policy can allow it"}},
		"remount":               {"a.example.org", "timeo=3,remount", []string{`"remount"`, "no policy can allow it"}},
		"an unknown one":        {"a.example.org", "frobnicate", []string{`"frobnicate"`}},
		"contradiction":         {"a.example.org", "hard,soft", []string{`"hard" and "soft" contradict`}},
		"the same twice":        {"a.example.org", "timeo=1,timeo=2", []string{"contradict"}},
		"half a version":        {"a.example.org", "minorversion=0", []string{`"minorversion=0" needs "vers=4"`}},
		"of another version":    {"a.example.org", "vers=4.1,minorversion=0", []string{`"minorversion=0" needs "vers=4"`}},
		"another export":        {"a.example.org", "source=files:/x", []string{`"source=files:/x"`, "no policy can allow it"}},
		"a word with a value":   {"a.example.org", "hard=1", []string{`"hard" takes no value`}},
		"no with a value":       {"a.example.org", "nolock=0", []string{`"nolock" takes no value`}},
		"a newline":             {"a.example.org", "timeo=1\nbind", []string{"is no option"}},
		"NUL":                   {"a.example.org", "timeo=1\x00", []string{"is no option"}},
		"quotes":                {"a.example.org", `timeo="1,bind"`, []string{"is no option"}},
		"a backslash":           {"a.example.org", `timeo=1\,bind`, []string{"is no option"}},
		"an empty element":      {"a.example.org", "timeo=1,,hard", []string{"it is empty"}},
		"a comma at the end":    {"a.example.org", "timeo=1,", []string{"it is empty"}},
		"a flag":                {"a.example.org", "-o=bind", []string{"is no option"}},
		"no name":               {"a.example.org", "=1", []string{"is no option"}},
		"a space within":        {"a.example.org", "timeo= 1", []string{"is no option"}},
		"beyond ASCII":          {"a.example.org", "timeo=١", []string{"is no option"}},
		"upper case":            {"a.example.org", "TIMEO=1", []string{"lower-case"}},
		"very long":             {"a.example.org", "timeo=" + strings.Repeat("1", 300), []string{"longer than 255"}},
		"very many":             {"a.example.org", strings.Repeat("timeo=1,", 300), []string{"2400 bytes"}},
		"the suffix itself":     {"example.org", "timeo=1", []string{`no entry for server "example.org"`}},
		"an unlike suffix":      {"badexample.org", "timeo=1", []string{"no entry"}},
		"a name for an address": {"10.0.0.1", "timeo=1", []string{"no entry"}},
	} {
		t.Run(name, func(t *testing.T) {
			p, h := newPluginWith(t, policy...)
			_, err := mountedWith(t, p, h, inline(tc.server, "/nfs"), annotated(optionsOfVol1, tc.asked))
			if err == nil {
				t.Fatal("it was mounted")
			}
			for _, want := range append(tc.because, "ops-test/web", "vol1") {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in: %v", want, err)
				}
			}
			notAllowed := errors.Is(err, nfs.ErrNotAllowed)
			_, invalid := errors.AsType[*volume.InvalidSpecError](err)
			if notAllowed == invalid {
				t.Errorf("neither or both of the types: %v", err)
			}
		})
	}
	t.Run("rw of a read-only volume", func(t *testing.T) {
		p, h := newPluginWith(t, policy...)
		spec := inline("a.example.org", "/nfs")
		spec.Volume.NFS.ReadOnly = true
		for asked, because := range map[string]string{"rw": "read-only", "rw=1": "takes no value"} {
			if _, err := mountedWith(t, p, h, spec, annotated(optionsOfVol1, asked)); err == nil || !strings.Contains(err.Error(), because) {
				t.Errorf("%s: err = %v", asked, err)
			}
		}
	})
}

// The closest entry counts, whatever the order, and no other.
func TestTheClosestEntryCounts(t *testing.T) {
	entries := []nfs.ServerPolicy{
		{Server: "*", Defaults: []string{"timeo=1"}},
		{Server: "*.org", Defaults: []string{"timeo=2"}},
		{Server: "*.example.org", Defaults: []string{"timeo=3"}},
		{Server: "a.example.org", Defaults: []string{"timeo=4"}},
		{Server: "10.0.0.0/8", Defaults: []string{"timeo=5"}},
		{Server: "10.1.0.0/16", Defaults: []string{"timeo=6"}},
		{Server: "10.1.1.1", Defaults: []string{"timeo=7"}},
		{Server: "fd00::/8", Defaults: []string{"timeo=8"}},
		{Server: "[fd00::1]", Defaults: []string{"timeo=9"}},
	}
	for _, order := range [][]nfs.ServerPolicy{entries, slices.Collect(func(yield func(nfs.ServerPolicy) bool) {
		for _, e := range slices.Backward(entries) {
			if !yield(e) {
				return
			}
		}
	})} {
		p, h := newPluginWith(t, order...)
		for server, want := range map[string]string{
			"files": "1", "files.org": "2", "b.example.org": "3", "x.a.example.org": "3", "A.example.ORG": "4", "a.example.org.": "4",
			"192.168.0.1": "1", "10.2.0.1": "5", "10.1.2.3": "6", "10.1.1.1": "7", "::ffff:10.1.1.1": "7",
			"fd00::2": "8", "[fd00::1]": "9", "fd00:0:0::1": "9", "fd00::1%eth0": "9", "fe80::1%eth0": "1",
			"fe80::1%x.example.org": "1", // an address, whatever its zone is called
		} {
			got, err := mountedWith(t, p, h, inline(server, "/nfs"), annotated())
			if err != nil || !slices.Equal(got, []string{"timeo=" + want}) {
				t.Errorf("%s: %v, %v; want timeo=%s", server, got, err, want)
			}
		}
	}
}

// What is mounted stays, whatever the annotations or the policy say by now: its
// containers use it. Only the volume's own wish for read-only counts.
func TestChangedAnnotationsLeaveWhatIsMounted(t *testing.T) {
	p, h := newPluginWith(t, nfs.ServerPolicy{Server: "server", Allow: []string{"timeo", "ro"}})
	spec := inline("server", "/nfs")
	first, err := p.NewMounter(spec, annotated(optionsOfVol1, "timeo=7"))
	if err != nil {
		t.Fatal(err)
	}
	setUp(t, first)
	h.Fake.ResetCalls()
	for _, now := range []string{"timeo=7", "timeo=9", "", "ro", "not=allowed", "broken,,"} {
		for _, p := range []volume.VolumePlugin{p, nfs.New(nfs.Config{})} { // one as after a restart without the policy
			if err := p.Init(h); err != nil {
				t.Fatal(err)
			}
			m, err := p.NewMounter(spec, annotated(optionsOfVol1, now))
			if err != nil {
				t.Fatal(err)
			}
			if err := m.SetUp(t.Context(), volume.MounterArgs{}); err != nil {
				t.Errorf("%q: %v", now, err)
			}
		}
	}
	if calls := h.Fake.Calls(); len(calls) > 0 {
		t.Errorf("calls %v", calls)
	}
	readOnly := inline("server", "/nfs")
	readOnly.Volume.NFS.ReadOnly = true
	m, err := p.NewMounter(readOnly, annotated())
	if err != nil {
		t.Fatal(err)
	}
	if err := m.SetUp(t.Context(), volume.MounterArgs{}); err == nil {
		t.Error("a writable mount was taken for a read-only volume's")
	}
	tearDown(t, p, "vol1", "u1")
	wantGone(t, h, first.GetPath())
}

// PersistentVolumes have options of their own: no policy is asked, and no
// defaults are added.
func TestPoliciesAreForInlineVolumes(t *testing.T) {
	p, h := newPluginWith(t, nfs.ServerPolicy{Server: "*", Defaults: []string{"nosuid"}})
	spec := persistent("server", "/nfs", func(pv *v1.PersistentVolume) { pv.Spec.MountOptions = []string{"vers=3"} })
	got, err := mountedWith(t, p, h, spec, annotated(nfs.AnnotationMountOptions+"/nfs211", "soft"))
	if err != nil || !slices.Equal(got, []string{"vers=3"}) {
		t.Errorf("mounted with %q, %v", got, err)
	}
}

func TestCheckPod(t *testing.T) {
	p, _ := newPlugin(t)
	volumes := []v1.Volume{
		*inline("server", "/nfs").Volume,
		{Name: "claim", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}},
		{Name: "scratch", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
	}
	for name, tc := range map[string]struct {
		key, value string
		because    string // empty: none
	}{
		"options":            {optionsOfVol1, "vers=4.1, hard", ""},
		"a mode":             {makeVol1, "02770", ""},
		"others' annotation": {"example.com/vol1", "\n", ""},
		"no such volume":     {nfs.AnnotationMountOptions + "/vol2", "hard", `no volume "vol2"`},
		"no name":            {nfs.AnnotationMountOptions, "hard", "names no volume"},
		"an empty name":      {nfs.AnnotationMakeVolumeDirectory + "/", "0770", "names no volume"},
		"a letter less":      {"mount-option.podvol.io/vol1", "hard", nfs.AnnotationMountOptions + "/<volume>"},
		"a letter more":      {"make-directories.podvol.io/vol1", "0770", nfs.AnnotationMakeVolumeDirectory + "/<volume>"},
		"just the domain":    {"podvol.io/mount-options", "hard", nfs.AnnotationMountOptions + "/<volume>"},
		"a volume's":         {nfs.AnnotationMakeDirectory, "0770", "is for PersistentVolumes"},
		"a recycler's":       {recyclerpod.Annotation, "pv1", ""},
		"others' domain":     {"mount-options.notpodvol.io/vol1", "hard", ""},
		"no domain":          {"mount-options", "podvol.io/", ""},
		"a claim":            {nfs.AnnotationMountOptions + "/claim", "hard", "spec.mountOptions"},
		"a claim's mode":     {nfs.AnnotationMakeVolumeDirectory + "/claim", "0770", nfs.AnnotationMakeDirectory},
		"no NFS":             {nfs.AnnotationMountOptions + "/scratch", "size=1", "no NFS volume"},
		"no option":          {optionsOfVol1, "hard;soft\n", "is no option"},
		"no mode":            {makeVol1, "rwx", "is no mode"},
		"an empty mode":      {makeVol1, "", "is no mode"},
		"setuid":             {makeVol1, "4770", "is no mode"},
		"nothing for owners": {makeVol1, "0070", "is no mode"},
		"decimal":            {makeVol1, "0o770", "is no mode"},
		"a sign":             {makeVol1, "+770", "is no mode"},
		"too short":          {makeVol1, "77", "is no mode"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := annotated(tc.key, tc.value)
			pod.Spec.Volumes = volumes
			err := podcheck.Check(p, pod)
			if tc.because == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			wrong, ok := errors.AsType[*volume.InvalidSpecError](err)
			if !ok || volume.IsUncertain(err) || !strings.Contains(err.Error(), tc.because) || !strings.Contains(wrong.Field, tc.key) {
				t.Errorf("err = %v", err)
			}
		})
	}
}

func FuzzInlineOptions(f *testing.F) {
	for _, s := range []string{"vers=4.1,nconnect=4", " hard , timeo=7", "a,,b", "x=\"1,bind\"", "ro,rw", "context=u:r:t", "addr=10.0.0.1", "\x00", "remount"} {
		f.Add(s)
	}
	p := nfs.New(nfs.Config{Inline: nfs.InlinePolicy{Servers: []nfs.ServerPolicy{{Server: "*", Allow: []string{"vers", "hard", "timeo", "ro", "addr=10.0.0.2"}, Defaults: []string{"nosuid", "soft"}}}}})
	host := &volume.Host{RootDir: "/nonexistent/root", NodeName: "n", Mounter: fakemount.New()}
	if err := p.Init(host); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, asked string) {
		spec, pod := inline("server", "/nfs"), annotated(optionsOfVol1, asked)
		m, err := p.NewMounter(spec, pod)
		if err != nil {
			t.Fatal(err)
		}
		options, err := nfs.OptionsOf(m)
		if err != nil {
			if volume.IsUncertain(err) {
				t.Errorf("an uncertain error: %v", err)
			}
			return
		}
		seen := make(map[string]bool)
		for _, o := range options {
			name, value, _ := strings.Cut(o, "=")
			if !slices.Contains([]string{"vers", "hard", "timeo", "ro", "nosuid", "soft"}, name) && o != "addr=10.0.0.2" || seen[name] || strings.ContainsAny(value, ", \"'\\\n\x00") {
				t.Errorf("%q makes %q of it", asked, options)
			}
			seen[name] = true
		}
		if seen["hard"] == seen["soft"] || !seen["nosuid"] {
			t.Errorf("%q makes %q of it", asked, options)
		}
		if podcheck.Check(p, pod) != nil {
			t.Errorf("%q is mounted but refused as invalid", asked)
		}
	})
}
