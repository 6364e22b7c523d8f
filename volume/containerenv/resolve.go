package containerenv

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/downward"
	"github.com/podvol/podvol/volume/objects"
)

// Sources are where the values come from that are not in the pod.
type Sources struct {
	// Objects has the config maps and secrets. Nil: a variable that needs one is an error,
	// a *[volume.MissingRoleError].
	Objects objects.Getter
	// Allocatable tells the node's size, which is the limit of a container that
	// has none. Nil: a variable that needs it is an error, a *[volume.MissingRoleError].
	Allocatable volume.AllocatableGetter
	// RootDir is the node's root directory, for variables from files in the pod's emptyDirs
	// (fileKeyRef). The pod's volumes are set up there, and its init containers that come
	// before this container have ended. Empty: such a variable is [ErrEnvFile].
	RootDir string
	// Services are services of the cluster. Chosen are the ones in the pod's
	// namespace, unless its enableServiceLinks is false, and default/kubernetes.
	// Their variables, such as KUBERNETES_SERVICE_HOST, can be referred to by all
	// others and come last; one that the container sets itself stays. Nil: none.
	Services []v1.Service
}

// Resolve returns the environment of one of the pod's containers. The container is passed
// by itself, so that it may also be an init container or a v1.Container of an ephemeral
// container's common part. Pod and container are not changed.
//
//   - Addresses come from the pod's status and are empty until it has them.
//   - Names of variables are any printable ASCII without "=" (as the API allows since
//     v1.34). Other keys of envFrom are skipped and reported in the result.
//   - A missing optional source sets nothing. Every other failure is an *[Error], all joined,
//     so that a user sees all missing objects at once; behind it are *[MissingError],
//     [ErrEnvFile], [ErrEnvFileFormat], [ErrZeroByte], *volume.InvalidSpecError or a failed look-up.
//   - A pod or a container that is nil is a *[volume.InvalidSpecError] alone.
//   - Each object is read once.
//   - A file of a fileKeyRef is at most 64 KiB, and links in its volume do not lead out. An
//     empty value is one, where the kubelet takes it for a missing key.
//   - A file system that hangs, as a container may mount one in its emptyDir, is waited for
//     until ctx ends. The read that was given up keeps a thread until the file system answers.
func Resolve(ctx context.Context, pod *v1.Pod, container *v1.Container, from Sources) (*Environment, error) {
	switch {
	case pod == nil:
		return nil, volume.Invalid("pod", "is missing")
	case container == nil:
		return nil, volume.Invalid("container", "is missing")
	}
	r := resolver{
		pod: pod, container: container, from: from, objects: make(map[volume.ObjectRef]object),
		env: &Environment{values: make(map[string]string)}, services: servicesOf(pod, from.Services),
	}
	for i := range container.EnvFrom {
		r.note(fmt.Sprintf("envFrom[%d]", i), "", r.all(ctx, &container.EnvFrom[i]))
	}
	for i := range container.Env {
		v := &container.Env[i]
		r.note(fmt.Sprintf("env[%d]", i), v.Name, r.variable(ctx, v))
	}
	for _, name := range slices.Sorted(maps.Keys(r.services)) {
		if _, own := r.env.Lookup(name); !own {
			r.env.set(name, r.services[name])
		}
	}
	return r.env, errors.Join(r.errs...)
}

// lookup finds what a value may refer to.
func (r *resolver) lookup(name string) (value string, ok bool) {
	if value, ok = r.env.Lookup(name); !ok {
		value, ok = r.services[name]
	}
	return value, ok
}

type resolver struct {
	pod       *v1.Pod
	container *v1.Container
	from      Sources
	objects   map[volume.ObjectRef]object
	env       *Environment
	services  map[string]string
	errs      []error
	// reads are of files in the pod's volumes.
	reads blockingcall.Group[string]
}

// object is a config map or secret as read.
type object struct {
	data map[string]string
	err  error
}

func (r *resolver) note(field, name string, err error) {
	if err != nil {
		r.errs = append(r.errs, &Error{
			Pod:       types.NamespacedName{Namespace: r.pod.Namespace, Name: r.pod.Name},
			Container: r.container.Name, Field: field, Name: name, Err: err,
		})
	}
}

// all sets every key of a config map or secret.
func (r *resolver) all(ctx context.Context, from *v1.EnvFromSource) error {
	var ref volume.ObjectRef
	var optional *bool
	switch {
	case (from.ConfigMapRef == nil) == (from.SecretRef == nil):
		return volume.Invalid("envFrom", "must have exactly one of configMapRef and secretRef")
	case from.ConfigMapRef != nil:
		ref, optional = r.ref("ConfigMap", from.ConfigMapRef.Name), from.ConfigMapRef.Optional
	default:
		ref, optional = r.ref("Secret", from.SecretRef.Name), from.SecretRef.Optional
	}
	data, err := r.read(ctx, ref)
	if err != nil {
		return unlessOptional(err, optional)
	}
	skipped := Skipped{Ref: ref}
	for _, key := range slices.Sorted(maps.Keys(data)) {
		name := from.Prefix + key
		if len(validation.IsRelaxedEnvVarName(name)) > 0 {
			skipped.Names = append(skipped.Names, name)
			continue
		}
		if err := r.set(name, data[key]); err != nil {
			return fmt.Errorf("key %q of %s: %w", key, ref, err)
		}
	}
	if skipped.Names != nil {
		r.env.Skipped = append(r.env.Skipped, skipped)
	}
	return nil
}

func (r *resolver) variable(ctx context.Context, v *v1.EnvVar) error {
	if faults := validation.IsRelaxedEnvVarName(v.Name); len(faults) > 0 {
		return volume.Invalid("name", "%s", strings.Join(faults, "; "))
	}
	if v.ValueFrom == nil {
		value, _ := downward.Expand(v.Value, r.lookup)
		return r.set(v.Name, value)
	}
	if v.Value != "" {
		return volume.Invalid("valueFrom", "excludes value")
	}
	value, set, err := r.valueFrom(ctx, v.ValueFrom)
	if err != nil || !set {
		return err
	}
	return r.set(v.Name, value)
}

func (r *resolver) set(name, value string) error {
	if strings.ContainsRune(value, 0) {
		return ErrZeroByte
	}
	r.env.set(name, value)
	return nil
}

// valueFrom looks a value up; it is not set where it is missing and optional.
func (r *resolver) valueFrom(ctx context.Context, s *v1.EnvVarSource) (value string, set bool, err error) {
	if n := countSources(s); n != 1 {
		return "", false, volume.Invalid("valueFrom", "must have exactly one source, has %d", n)
	}
	switch {
	case s.FieldRef != nil:
		field, err := downward.VariableField("valueFrom.fieldRef", s.FieldRef)
		if err != nil {
			return "", false, err
		}
		return field.Of(r.pod), true, nil
	case s.ResourceFieldRef != nil:
		value, err = r.resource(ctx, s.ResourceFieldRef)
		return value, err == nil, err
	case s.ConfigMapKeyRef != nil:
		k := s.ConfigMapKeyRef
		return r.key(ctx, r.ref("ConfigMap", k.Name), k.Key, k.Optional)
	case s.SecretKeyRef != nil:
		k := s.SecretKeyRef
		return r.key(ctx, r.ref("Secret", k.Name), k.Key, k.Optional)
	}
	return r.file(ctx, s.FileKeyRef)
}

func countSources(s *v1.EnvVarSource) (n int) {
	for _, set := range []bool{s.FieldRef != nil, s.ResourceFieldRef != nil, s.ConfigMapKeyRef != nil, s.SecretKeyRef != nil, s.FileKeyRef != nil} {
		if set {
			n++
		}
	}
	return n
}

func (r *resolver) resource(ctx context.Context, ref *v1.ResourceFieldSelector) (string, error) {
	resource, err := downward.VariableResource("valueFrom.resourceFieldRef", ref, r.pod, r.container)
	if err != nil {
		return "", err
	}
	value, err := resource.Value(ctx, &volume.Host{Allocatable: r.from.Allocatable})
	if err != nil {
		return "", fmt.Errorf("%s is not limited and what the node has cannot be told: %w", ref.Resource, err)
	}
	return value, nil
}

func (r *resolver) key(ctx context.Context, ref volume.ObjectRef, key string, optional *bool) (value string, set bool, err error) {
	data, err := r.read(ctx, ref)
	if err == nil {
		if value, set = data[key]; !set {
			err = &MissingError{Ref: ref, Key: key}
		}
	}
	return value, set, unlessOptional(err, optional)
}

// unlessOptional forgives that something is missing where it may be.
func unlessOptional(err error, optional *bool) error {
	if _, missing := errors.AsType[*MissingError](err); missing && optional != nil && *optional {
		return nil
	}
	return err
}

func (r *resolver) ref(kind, name string) volume.ObjectRef {
	return volume.NewObjectRef(kind, r.pod.Namespace, name)
}

// read returns an object's data. A config map's binaryData is no part of
// environments.
func (r *resolver) read(ctx context.Context, ref volume.ObjectRef) (map[string]string, error) {
	if o, known := r.objects[ref]; known {
		return o.data, o.err
	}
	data, err := r.fetch(ctx, ref)
	switch {
	case errors.Is(err, volume.ErrNotFound):
		err = &MissingError{Ref: ref}
	case err != nil:
		err = fmt.Errorf("cannot read %s: %w", ref, err)
	}
	r.objects[ref] = object{data, err}
	return data, err
}

func (r *resolver) fetch(ctx context.Context, ref volume.ObjectRef) (map[string]string, error) {
	if r.from.Objects == nil {
		return nil, &volume.MissingRoleError{Role: "objects.Getter", Field: "Objects", Advice: "set Objects in containerenv.Sources"}
	}
	if ref.Kind == "ConfigMap" {
		configMap, err := objects.Get[*v1.ConfigMap](ctx, r.from.Objects, ref)
		if err != nil {
			return nil, err
		}
		return configMap.Data, nil
	}
	secret, err := objects.Get[*v1.Secret](ctx, r.from.Objects, ref)
	if err != nil {
		return nil, err
	}
	data := make(map[string]string, len(secret.Data))
	for key, value := range secret.Data {
		data[key] = string(value)
	}
	return data, nil
}
