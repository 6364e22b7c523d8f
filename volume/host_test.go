package volume_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/layout"
)

// The paths are the kubelet's, letter by letter.
func TestHostDirectories(t *testing.T) {
	h := &volume.Host{RootDir: "/var/lib/kubelet", NodeName: "node1"}
	for _, tc := range []struct{ got, want string }{
		{h.GetPodVolumeDir("0a-1b", "kubernetes.io/nfs", "nfs211"), "/var/lib/kubelet/pods/0a-1b/volumes/kubernetes.io~nfs/nfs211"},
		{h.GetPodVolumeDir("0a-1b", "kubernetes.io/csi", "pv-1"), "/var/lib/kubelet/pods/0a-1b/volumes/kubernetes.io~csi/pv-1"},
		{layout.GetPodVolumeDeviceDir(h, "0a-1b", "kubernetes.io/csi"), "/var/lib/kubelet/pods/0a-1b/volumeDevices/kubernetes.io~csi"},
		{h.GetPodPluginDir("0a-1b", "kubernetes.io/empty-dir"), "/var/lib/kubelet/pods/0a-1b/plugins/kubernetes.io~empty-dir"},
		{h.GetPluginDir("kubernetes.io/local-volume"), "/var/lib/kubelet/plugins/kubernetes.io/local-volume"},
		{h.GetPluginDir("kubernetes.io/csi"), "/var/lib/kubelet/plugins/kubernetes.io/csi"},
	} {
		if tc.got != tc.want {
			t.Errorf("got %s, want %s", tc.got, tc.want)
		}
	}
}

func TestHostLendsWhatItWasGiven(t *testing.T) {
	fake := fakemount.New()
	t.Cleanup(func() {
		if err := fake.Close(); err != nil {
			t.Error(err)
		}
	})
	h := &volume.Host{NodeName: "node1", Mounter: fake}
	if h.GetMounter() != mount.Interface(fake) || h.GetNodeName() != "node1" {
		t.Errorf("mounter %v, node %q", h.GetMounter(), h.GetNodeName())
	}
}

func TestEscapeQualifiedName(t *testing.T) {
	for name, escaped := range map[string]string{
		"kubernetes.io/nfs":      "kubernetes.io~nfs",
		"example.com/my_vol.x-1": "example.com~my_vol.x-1",
		"unqualified":            "unqualified",
		"":                       "",
	} {
		if got := layout.EscapeQualifiedName(name); got != escaped {
			t.Errorf("EscapeQualifiedName(%q) = %q, want %q", name, got, escaped)
		}
		if got := layout.UnescapeQualifiedName(escaped); got != name {
			t.Errorf("UnescapeQualifiedName(%q) = %q, want %q", escaped, got, name)
		}
	}
}

// roleTest tells about one role of Host, whatever its type.
type roleTest struct {
	give func(*volume.Host)
	ask  func(volume.VolumeHost) (any, error)
	name string // in the error
}

func ask[R any](h volume.VolumeHost) (any, error) { return volume.Role[R](h) }

// roleTests are keyed by the name of Host's field.
func roleTests() map[string]roleTest {
	return map[string]roleTest{
		"Secrets":         {func(h *volume.Host) { h.Secrets = struct{ volume.SecretGetter }{} }, ask[volume.SecretGetter], "volume.SecretGetter"},
		"ConfigMaps":      {func(h *volume.Host) { h.ConfigMaps = struct{ volume.ConfigMapGetter }{} }, ask[volume.ConfigMapGetter], "volume.ConfigMapGetter"},
		"Tokens":          {func(h *volume.Host) { h.Tokens = struct{ volume.TokenRequester }{} }, ask[volume.TokenRequester], "volume.TokenRequester"},
		"TrustBundles":    {func(h *volume.Host) { h.TrustBundles = struct{ volume.TrustBundleGetter }{} }, ask[volume.TrustBundleGetter], "volume.TrustBundleGetter"},
		"PodCertificates": {func(h *volume.Host) { h.PodCertificates = struct{ volume.PodCertificateRequester }{} }, ask[volume.PodCertificateRequester], "volume.PodCertificateRequester"},
		"Allocatable":     {func(h *volume.Host) { h.Allocatable = struct{ volume.AllocatableGetter }{} }, ask[volume.AllocatableGetter], "volume.AllocatableGetter"},
		"Events":          {func(h *volume.Host) { h.Events = struct{ volume.EventSink }{} }, ask[volume.EventSink], "volume.EventSink"},
		"HostFiles":       {func(h *volume.Host) { h.HostFiles = struct{ volume.HostFiles }{} }, ask[volume.HostFiles], "volume.HostFiles"},
		"Pods":            {func(h *volume.Host) { h.Pods = struct{ volume.PodRunner }{} }, ask[volume.PodRunner], "volume.PodRunner"},
		"Releases":        {func(h *volume.Host) { h.Releases = struct{ volume.ReleaseVerifier }{} }, ask[volume.ReleaseVerifier], "volume.ReleaseVerifier"},
		"CSIDrivers":      {func(h *volume.Host) { h.CSIDrivers = struct{ volume.CSIDriverGetter }{} }, ask[volume.CSIDriverGetter], "volume.CSIDriverGetter"},
		"Attachments":     {func(h *volume.Host) { h.Attachments = struct{ volume.AttachmentGetter }{} }, ask[volume.AttachmentGetter], "volume.AttachmentGetter"},
		"CSINode":         {func(h *volume.Host) { h.CSINode = struct{ volume.CSINodePublisher }{} }, ask[volume.CSINodePublisher], "volume.CSINodePublisher"},
		"Endpoints":       {func(h *volume.Host) { h.Endpoints = struct{ volume.EndpointsGetter }{} }, ask[volume.EndpointsGetter], "volume.EndpointsGetter"},
	}
}

// A field that Roles forgets would be a role that nobody finds.
func TestEveryRoleFieldIsTested(t *testing.T) {
	tests := roleTests()
	host := reflect.TypeFor[volume.Host]()
	for i := range host.NumField() {
		f := host.Field(i)
		_, tested := tests[f.Name]
		if isRole := f.Type.Kind() == reflect.Interface && f.Name != "Mounter"; isRole != tested {
			t.Errorf("Host.%s: a role %v, in the table %v", f.Name, isRole, tested)
		}
	}
}

// What a role can do beside its own methods is found as the role itself is.
func TestRolesBesideRoles(t *testing.T) {
	type forgetter struct {
		volume.TokenRequester
		volume.TokenForgetter
	}
	type watcher struct {
		volume.TrustBundleGetter
		volume.TrustBundleWatcher
	}
	for name, tc := range map[string]roleTest{
		"TokenForgetter":     {func(h *volume.Host) { h.Tokens = forgetter{} }, ask[volume.TokenForgetter], "volume.TokenForgetter"},
		"TrustBundleWatcher": {func(h *volume.Host) { h.TrustBundles = watcher{} }, ask[volume.TrustBundleWatcher], "volume.TrustBundleWatcher"},
	} {
		h := &volume.Host{Tokens: struct{ volume.TokenRequester }{}, TrustBundles: struct{ volume.TrustBundleGetter }{}}
		if role, err := tc.ask(h); err == nil {
			t.Errorf("%s: %v of a host whose roles cannot", name, role)
		}
		tc.give(h)
		if role, err := tc.ask(h); err != nil || role == nil {
			t.Errorf("%s: got %v, %v", name, role, err)
		}
	}
}

func TestRoleOfHostFields(t *testing.T) {
	for field, tc := range roleTests() {
		t.Run(field, func(t *testing.T) {
			h := &volume.Host{}
			role, err := tc.ask(h)
			missing, ok := errors.AsType[*volume.MissingRoleError](err)
			if !ok || role != nil || missing.Role != tc.name || !strings.Contains(err.Error(), tc.name) {
				t.Errorf("absent: got %v, %v", role, err)
			}
			tc.give(h)
			if role, err := tc.ask(h); err != nil || role == nil {
				t.Errorf("present: got %v, %v", role, err)
			}
			for other, tc := range roleTests() {
				if role, err := tc.ask(h); other != field && err == nil {
					t.Errorf("with only %s given, %s is %v", field, other, role)
				}
			}
		})
	}
}

func TestHostsRolesAreNeverNil(t *testing.T) {
	h := &volume.Host{Events: struct{ volume.EventSink }{}}
	if roles := h.Roles(); len(roles) != 1 || roles[0] == nil {
		t.Errorf("Roles = %v", roles)
	}
	if roles := (&volume.Host{}).Roles(); len(roles) != 0 {
		t.Errorf("Roles of an empty host = %v", roles)
	}
}

// ownHost is a host that is a role itself.
type ownHost struct{ *volume.Host }

func (ownHost) GetSecret(context.Context, string, string) (*v1.Secret, error) {
	return &v1.Secret{Data: map[string][]byte{"from": []byte("the host itself")}}, nil
}

func TestHostItselfIsAskedFirst(t *testing.T) {
	host := ownHost{&volume.Host{
		Secrets: struct{ volume.SecretGetter }{}, // calling it would panic
		Events:  struct{ volume.EventSink }{},
	}}
	getter, err := volume.Role[volume.SecretGetter](host)
	if err != nil {
		t.Fatal(err)
	}
	if s, err := getter.GetSecret(t.Context(), "ns", "s"); err != nil || string(s.Data["from"]) != "the host itself" {
		t.Errorf("got %v, %v", s, err)
	}
	if _, err := volume.Role[volume.EventSink](host); err != nil {
		t.Errorf("a role of the embedded host: %v", err)
	}
}

// bareHost has no roles and no way to hold any.
type bareHost struct{ volume.VolumeHost }

func TestHostsWithoutRoles(t *testing.T) {
	for _, host := range []volume.VolumeHost{nil, bareHost{}} {
		if _, err := volume.Role[volume.SecretGetter](host); err == nil {
			t.Errorf("%T has a role", host)
		}
	}
}
