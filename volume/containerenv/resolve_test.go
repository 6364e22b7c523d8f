package containerenv_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/containerenv"
	"github.com/podvol/podvol/volume/objects"
)

const secretText = "do-not-tell"

func store(t *testing.T) *objects.Store {
	t.Helper()
	s := objects.NewStore()
	for _, o := range []metav1.Object{
		&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "config", UID: "1"},
			Data: map[string]string{"colour": "blue", "a.b-c": "dotted", "both": "config", "literal": "$(colour)"}, BinaryData: map[string][]byte{"binary": {1}}},
		&v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "login", UID: "2"},
			Data: map[string][]byte{"password": []byte(secretText), "both": []byte("secret")}},
		// Not through the API: keys that it would refuse, and a zero byte.
		&v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "odd", UID: "3"},
			Data: map[string][]byte{"x=y": []byte(secretText), "ä": []byte(secretText), "fine": []byte("ok")}},
		&v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "zero", UID: "4"},
			Data: map[string][]byte{"key": []byte(secretText + "\x00")}},
	} {
		if _, err := s.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func pod() *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", UID: "uid-0",
			Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"example.com/note": "two\nlines"}},
		Spec: v1.PodSpec{NodeName: "node1", ServiceAccountName: "robot",
			Volumes:    []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}},
			Containers: []v1.Container{{Name: "other", Resources: v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceCPU: resource.MustParse("3")}}}}},
		Status: v1.PodStatus{HostIP: "10.0.0.1", HostIPs: []v1.HostIP{{IP: "10.0.0.1"}, {IP: "fd00::1"}},
			PodIP: "10.1.0.7", PodIPs: []v1.PodIP{{IP: "10.1.0.7"}, {IP: "fd01::7"}}},
	}
}

type fixedNode struct{}

func (fixedNode) GetAllocatable(context.Context) (v1.ResourceList, error) {
	return v1.ResourceList{v1.ResourceCPU: resource.MustParse("4"), v1.ResourceMemory: resource.MustParse("8Gi")}, nil
}

func container(t *testing.T, text string) *v1.Container {
	t.Helper()
	c := &v1.Container{Name: "app"}
	if err := yaml.UnmarshalStrict([]byte(text), c); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestResolve(t *testing.T) {
	tests := map[string]struct {
		container string
		want      []string
	}{
		"nothing": {"{}", nil},
		"plain values": {`
env: [{name: A, value: "1"}, {name: EMPTY}, {name: odd.name-1, value: x}]`,
			[]string{"A=1", "EMPTY=", "odd.name-1=x"}},
		"earlier variables are expanded, later ones are not": {`
env:
- {name: A, value: "$(B)-$(A)"}
- {name: B, value: b}
- {name: C, value: "$(A)+$(B)+$$(B)"}`,
			[]string{"A=$(B)-$(A)", "B=b", "C=$(B)-$(A)+b+$(B)"}},
		"a later value of one name wins, in the first one's place": {`
env: [{name: A, value: "1"}, {name: B, value: "$(A)"}, {name: A, value: "$(A)2"}]`,
			[]string{"A=12", "B=1"}},
		"envFrom, in order": {`
envFrom: [{configMapRef: {name: config}}, {secretRef: {name: login}}]`,
			[]string{"a.b-c=dotted", "both=secret", "colour=blue", "literal=$(colour)", "password=" + secretText}},
		"envFrom with a prefix, and env over it": {`
envFrom: [{prefix: P_, configMapRef: {name: config}}]
env: [{name: P_both, value: "own $(P_both)"}]`,
			[]string{"P_a.b-c=dotted", "P_both=own config", "P_colour=blue", "P_literal=$(colour)"}},
		"what is optional and missing sets nothing": {`
envFrom: [{configMapRef: {name: nix, optional: true}}, {secretRef: {name: nix, optional: true}}]
env:
- {name: A, valueFrom: {configMapKeyRef: {name: nix, key: k, optional: true}}}
- {name: B, valueFrom: {secretKeyRef: {name: login, key: nix, optional: true}}}
- {name: C, value: "$(A)"}`,
			[]string{"C=$(A)"}},
		"keys": {`
env:
- {name: A, valueFrom: {configMapKeyRef: {name: config, key: literal}}}
- {name: B, valueFrom: {secretKeyRef: {name: login, key: password}}}
- {name: C, value: "$(A) $(B)"}`,
			[]string{"A=$(colour)", "B=" + secretText, "C=$(colour) " + secretText}},
		"fields": {`
env:
- {name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
- {name: NAMESPACE, valueFrom: {fieldRef: {apiVersion: v1, fieldPath: metadata.namespace}}}
- {name: UID, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}
- {name: LABEL, valueFrom: {fieldRef: {fieldPath: "metadata.labels['app']"}}}
- {name: NO_LABEL, valueFrom: {fieldRef: {fieldPath: "metadata.labels['nix']"}}}
- {name: ANNOTATION, valueFrom: {fieldRef: {fieldPath: "metadata.annotations['example.com/note']"}}}
- {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
- {name: ACCOUNT, valueFrom: {fieldRef: {fieldPath: spec.serviceAccountName}}}
- {name: HOST_IP, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}
- {name: HOST_IPS, valueFrom: {fieldRef: {fieldPath: status.hostIPs}}}
- {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
- {name: POD_IPS, valueFrom: {fieldRef: {fieldPath: status.podIPs}}}`,
			[]string{"NAME=web-0", "NAMESPACE=shop", "UID=uid-0", "LABEL=web", "NO_LABEL=", "ANNOTATION=two\nlines", "NODE=node1", "ACCOUNT=robot",
				"HOST_IP=10.0.0.1", "HOST_IPS=10.0.0.1,fd00::1", "POD_IP=10.1.0.7", "POD_IPS=10.1.0.7,fd01::7"}},
		"resources, one's own and another's": {`
resources: {limits: {memory: 100Mi}, requests: {cpu: 250m}}
env:
- {name: OWN, valueFrom: {resourceFieldRef: {resource: limits.memory, divisor: 1Mi}}}
- {name: BYTES, valueFrom: {resourceFieldRef: {resource: limits.memory}}}
- {name: REQUEST, valueFrom: {resourceFieldRef: {resource: requests.cpu, divisor: 1m}}}
- {name: ROUNDED_UP, valueFrom: {resourceFieldRef: {resource: requests.cpu}}}
- {name: NODE, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}
- {name: OTHER, valueFrom: {resourceFieldRef: {containerName: other, resource: limits.cpu}}}`,
			[]string{"OWN=100", "BYTES=104857600", "REQUEST=250", "ROUNDED_UP=1", "NODE=4", "OTHER=3"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			p, c := pod(), container(t, test.container)
			before := c.DeepCopy()
			env, err := containerenv.Resolve(t.Context(), p, c, containerenv.Sources{Objects: store(t), Allocatable: fixedNode{}})
			if err != nil {
				t.Fatal(err)
			}
			if got := env.List(); !slices.Equal(got, test.want) {
				t.Errorf("got  %q\nwant %q", got, test.want)
			}
			if len(env.Skipped) > 0 {
				t.Errorf("skipped %v", env.Skipped)
			}
			if !equal(t, before, c) || !equal(t, pod(), p) {
				t.Error("the arguments were changed")
			}
		})
	}
}

func equal(t *testing.T, a, b any) bool {
	t.Helper()
	x, err := yaml.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	y, err := yaml.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	return string(x) == string(y)
}

func TestRefused(t *testing.T) {
	tests := map[string]struct {
		container string
		says      []string
		is        error // nil: a *volume.InvalidSpecError
	}{
		"no config map":      {"envFrom: [{configMapRef: {name: nix}}]", []string{"envFrom[0]", "ConfigMap shop/nix not found", "optional: true"}, volume.ErrNotFound},
		"no secret":          {"env: [{name: A, valueFrom: {secretKeyRef: {name: nix, key: k}}}]", []string{`"A" (env[0])`, `container "app" of pod shop/web-0`, "Secret shop/nix not found"}, volume.ErrNotFound},
		"no key":             {"env: [{name: A, valueFrom: {configMapKeyRef: {name: config, key: nix}}}]", []string{`ConfigMap shop/config has no key "nix"`}, volume.ErrNotFound},
		"binary data":        {"env: [{name: A, valueFrom: {configMapKeyRef: {name: config, key: binary}}}]", []string{`no key "binary"`}, volume.ErrNotFound},
		"a zero byte":        {"env: [{name: A, valueFrom: {secretKeyRef: {name: zero, key: key}}}]", []string{"zero byte"}, containerenv.ErrZeroByte},
		"a zero byte of all": {"envFrom: [{secretRef: {name: zero}}]", []string{`key "key" of Secret shop/zero`}, containerenv.ErrZeroByte},
		"a file":             {"env: [{name: A, valueFrom: {fileKeyRef: {volumeName: v, path: p, key: k}}}]", []string{"init container"}, containerenv.ErrEnvFile},
		"all labels":         {"env: [{name: A, valueFrom: {fieldRef: {fieldPath: metadata.labels}}}]", []string{"metadata.labels['key']"}, nil},
		"an unknown field":   {"env: [{name: A, valueFrom: {fieldRef: {fieldPath: spec.hostname}}}]", []string{"spec.hostname", "status.podIP"}, nil},
		"another version":    {"env: [{name: A, valueFrom: {fieldRef: {apiVersion: v2, fieldPath: metadata.name}}}]", []string{"apiVersion"}, nil},
		"no such container":  {"env: [{name: A, valueFrom: {resourceFieldRef: {containerName: nix, resource: limits.cpu}}}]", []string{`no container and no init container "nix"`}, nil},
		"no such resource":   {"env: [{name: A, valueFrom: {resourceFieldRef: {resource: limits.gpu}}}]", []string{"limits.gpu"}, nil},
		"a wrong divisor":    {"env: [{name: A, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 1Mi}}}]", []string{"divisor"}, nil},
		"two sources":        {"env: [{name: A, valueFrom: {fieldRef: {fieldPath: metadata.name}, secretKeyRef: {name: login, key: both}}}]", []string{"exactly one source, has 2"}, nil},
		"no source":          {"env: [{name: A, valueFrom: {}}]", []string{"has 0"}, nil},
		"value and source":   {"env: [{name: A, value: x, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]", []string{"excludes value"}, nil},
		"envFrom nothing":    {"envFrom: [{prefix: x}]", []string{"configMapRef"}, nil},
		"a name with =":      {"env: [{name: A=B, value: x}]", []string{"env[0]", "name"}, nil},
		"no name":            {"env: [{value: x}]", []string{"env[0]"}, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := containerenv.Resolve(t.Context(), pod(), container(t, test.container), containerenv.Sources{Objects: store(t), Allocatable: fixedNode{}})
			if err == nil {
				t.Fatal("no error")
			}
			own, typed := errors.AsType[*containerenv.Error](err)
			_, invalid := errors.AsType[*volume.InvalidSpecError](err)
			if !typed || own.Container != "app" || own.Pod.Name != "web-0" || (test.is != nil && !errors.Is(err, test.is)) || (test.is == nil && !invalid) {
				t.Errorf("%#v", err)
			}
			for _, want := range test.says {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in: %v", want, err)
				}
			}
			if strings.Contains(err.Error(), secretText) {
				t.Errorf("a secret is told: %v", err)
			}
		})
	}
}

func TestAllThatIsMissingIsTold(t *testing.T) {
	c := container(t, `
envFrom: [{configMapRef: {name: first}}]
env:
- {name: B, valueFrom: {secretKeyRef: {name: second, key: k}}}
- {name: C, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}`)
	_, err := containerenv.Resolve(t.Context(), pod(), c, containerenv.Sources{Objects: store(t)})
	for _, want := range []string{"first", "second", "AllocatableGetter"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
}

func TestKeysThatAreNoNamesAreReported(t *testing.T) {
	env, err := containerenv.Resolve(t.Context(), pod(), container(t, "envFrom: [{prefix: P_, secretRef: {name: odd}}]"), containerenv.Sources{Objects: store(t)})
	if err != nil {
		t.Fatal(err)
	}
	if got := env.List(); !slices.Equal(got, []string{"P_fine=ok"}) {
		t.Errorf("environment %q", got)
	}
	if len(env.Skipped) != 1 || env.Skipped[0].Ref.Name != "odd" || !slices.Equal(env.Skipped[0].Names, []string{"P_x=y", "P_ä"}) ||
		!strings.Contains(env.Skipped[0].String(), "P_x=y") {
		t.Errorf("skipped %v", env.Skipped)
	}
}

// failing is a source that cannot answer, and counts how often it is asked.
type failing struct {
	objects.Source
	asked int
}

func (f *failing) Get(context.Context, volume.ObjectRef) (metav1.Object, error) {
	f.asked++
	return nil, objects.ErrNotSynced
}

// That a look-up failed is not that something does not exist.
func TestFailedLookUpIsNotOptional(t *testing.T) {
	source := &failing{}
	c := container(t, `
envFrom: [{configMapRef: {name: config, optional: true}}]
env: [{name: A, valueFrom: {configMapKeyRef: {name: config, key: k, optional: true}}}]`)
	_, err := containerenv.Resolve(t.Context(), pod(), c, containerenv.Sources{Objects: source})
	if !errors.Is(err, objects.ErrNotSynced) || errors.Is(err, volume.ErrNotFound) || source.asked != 1 {
		t.Errorf("asked %d times: %v", source.asked, err)
	}
}

func TestEnvironment(t *testing.T) {
	c := container(t, `
env:
- {name: A, value: "1"}
- {name: PASSWORD, valueFrom: {secretKeyRef: {name: login, key: password}}}`)
	env, err := containerenv.Resolve(t.Context(), pod(), c, containerenv.Sources{Objects: store(t)})
	if err != nil {
		t.Fatal(err)
	}
	if got := env.Expand([]string{"run", "$(A)", "$$(A)", "$(NIX)"}); !slices.Equal(got, []string{"run", "1", "$(A)", "$(NIX)"}) {
		t.Errorf("expanded to %q", got)
	}
	m := env.Map()
	m["A"] = "changed"
	if v, ok := env.Lookup("A"); v != "1" || !ok || m["PASSWORD"] != secretText || !slices.Equal(env.Names(), []string{"A", "PASSWORD"}) {
		t.Errorf("A=%q %v, %v", v, ok, env.Names())
	}
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		if text := fmt.Sprintf(format, env); strings.Contains(text, secretText) || !strings.Contains(text, "PASSWORD") {
			t.Errorf("%s prints %s", format, text)
		}
	}
}

// What a caller left out is told where it is needed, and not by a panic.
func TestSourcesThatAreMissing(t *testing.T) {
	optional := true
	for name, c := range map[string]v1.Container{
		"config map": {EnvFrom: []v1.EnvFromSource{{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: "config"}, Optional: &optional}}}},
		"secret": {Env: []v1.EnvVar{{Name: "PASSWORD", ValueFrom: &v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{
			LocalObjectReference: v1.LocalObjectReference{Name: "login"}, Key: "password"}}}}},
	} {
		_, err := containerenv.Resolve(t.Context(), pod(), &c, containerenv.Sources{})
		if missing, ok := errors.AsType[*volume.MissingRoleError](err); !ok || missing.Field != "Objects" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := containerenv.Resolve(t.Context(), pod(), &v1.Container{Env: []v1.EnvVar{{Name: "A", Value: "b"}}}, containerenv.Sources{}); err != nil {
		t.Errorf("nothing needed: %v", err)
	}
	if _, err := containerenv.Resolve(t.Context(), nil, &v1.Container{}, containerenv.Sources{}); !errors.As(err, new(*volume.InvalidSpecError)) {
		t.Errorf("no pod: %v", err)
	}
	if _, err := containerenv.Resolve(t.Context(), pod(), nil, containerenv.Sources{}); !errors.As(err, new(*volume.InvalidSpecError)) {
		t.Errorf("no container: %v", err)
	}
}
