package flexvolume

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/secretopt"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pluginbase"
	"github.com/podvol/podvol/volume/plugins/flexvolume/internal/driver"
)

// source is what the two kinds of sources have in common. [plugin.checked] fills in the rest.
type source struct {
	v1.FlexPersistentVolumeSource
	// inline: the secret is in the pod's namespace.
	inline bool

	// name is the volume's in its driver's eyes: the PersistentVolume's name. An inline volume
	// has one of its source's, since pods have many volumes of the same name.
	name string
	// specName is the name in the manifest.
	specName string
	// readOnly: the pod must not write.
	readOnly bool
}

func fromInline(v *v1.VolumeSource) *source {
	f := v.FlexVolume
	if f == nil {
		return nil
	}
	s := &source{inline: true, FlexPersistentVolumeSource: v1.FlexPersistentVolumeSource{Driver: f.Driver, FSType: f.FSType, ReadOnly: f.ReadOnly, Options: f.Options}}
	if f.SecretRef != nil {
		s.SecretRef = &v1.SecretReference{Name: f.SecretRef.Name}
	}
	return s
}

func fromPersistent(v *v1.PersistentVolumeSource) *source {
	if v.FlexVolume == nil {
		return nil
	}
	return &source{FlexPersistentVolumeSource: *v.FlexVolume}
}

// The options of the protocol that a manifest cannot give.
const (
	optionFSType         = "kubernetes.io/fsType"
	optionReadWrite      = "kubernetes.io/readwrite"
	optionName           = "kubernetes.io/pvOrVolumeName"
	optionFSGroup        = "kubernetes.io/mounterArgs.FsGroup"
	optionPodName        = "kubernetes.io/pod.name"
	optionPodNamespace   = "kubernetes.io/pod.namespace"
	optionPodUID         = "kubernetes.io/pod.uid"
	optionServiceAccount = "kubernetes.io/serviceAccount.name"
	optionSecret         = "kubernetes.io/secret/"
)

// maxArgument is how long an argument of a program may be on Linux, in bytes (MAX_ARG_STRLEN).
const maxArgument = 128<<10 - 1

// checked returns a spec's source, if all of it can be named in a path and to a program. The
// error is a *[volume.InvalidSpecError].
func (p *plugin) checked(spec *volume.Spec) (*source, error) {
	found, err := p.Source(spec)
	if err != nil {
		return nil, err
	}
	p.askedOnce.Do(func() { close(p.asked) })
	s := *found
	if err := driver.CheckName(s.Driver); err != nil {
		return nil, err
	}
	s.specName, s.name = spec.Name(), spec.Name()
	if s.inline {
		s.name = "inline-" + s.digest()
	}
	if s.name == "" || s.name == "." || s.name == ".." || strings.HasPrefix(s.name, "-") || strings.ContainsAny(s.name, "/\x00") || len(s.name) > 255 {
		return nil, volume.Invalid("metadata.name", "%.128q cannot be the name of a volume", s.name)
	}
	for _, key := range slices.Sorted(maps.Keys(s.Options)) {
		domain, _, _ := strings.Cut(key, "/")
		domain = "." + strings.ToLower(domain)
		if strings.HasSuffix(domain, ".kubernetes.io") || strings.HasSuffix(domain, ".k8s.io") {
			return nil, volume.Invalid("flexVolume.options", "has %.128q; names of kubernetes.io and k8s.io are reserved", key)
		}
	}
	s.readOnly = s.ReadOnly || pluginbase.ReadOnly(spec)
	if _, err := s.options(nil); err != nil {
		return nil, err
	}
	return &s, pluginbase.CheckFilesystem(spec, "flexVolume")
}

// digest is the same for inline volumes of the same data. Secret options do not count: names are
// public, and records do not have them. [source.checkShared] compares them.
func (s *source) digest() string {
	secret := ""
	if s.SecretRef != nil {
		secret = s.SecretRef.Name
	}
	b, _ := json.Marshal([]any{s.Driver, s.FSType, secret, secretopt.Parameters(s.Options)}) // strings only
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}

// options is the argument that has a volume's options, and more of them.
func (s *source) options(more map[string]string) (string, error) {
	all := maps.Clone(s.Options)
	if all == nil {
		all = make(map[string]string)
	}
	maps.Copy(all, more)
	all[optionFSType], all[optionReadWrite], all[optionName] = s.FSType, "rw", s.name
	if s.readOnly {
		all[optionReadWrite] = "ro"
	}
	b, err := json.Marshal(all)
	if err == nil && len(b) > maxArgument {
		err = volume.Invalid("flexVolume.options", "take %d bytes with what Kubernetes adds, and an argument of a program has at most %d", len(b), maxArgument)
	}
	return string(b), err
}

// call is a call of the driver about the volume at a place.
func (s *source) call(verb, place string, args ...string) driver.Call {
	return driver.Call{Verb: verb, Args: args, Key: place, Secrets: slices.Collect(maps.Values(s.secretOptions()))}
}

// secretOptions are the options that are secrets by their names.
func (s *source) secretOptions() map[string]string {
	masked, secret := secretopt.Parameters(s.Options), make(map[string]string)
	for key, value := range s.Options {
		if masked[key] != value {
			secret[key] = value
		}
	}
	return secret
}

// podOptions are the options of a pod's mount. secrets are the values among them that must not be
// shown.
func (m *mounter) podOptions(ctx context.Context, args volume.MounterArgs) (options string, secrets []string, err error) {
	more := map[string]string{
		optionPodName: m.Pod.Name, optionPodNamespace: m.Pod.Namespace, optionPodUID: string(m.PodUID), optionServiceAccount: m.serviceAccount,
	}
	if args.FsGroup != nil {
		more[optionFSGroup] = strconv.FormatInt(*args.FsGroup, 10)
	}
	data, err := m.secret(ctx)
	if err != nil {
		return "", nil, volume.NothingDone(err)
	}
	for key, value := range data {
		encoded := base64.StdEncoding.EncodeToString(value)
		more[optionSecret+key] = encoded
		secrets = append(secrets, encoded, string(value))
	}
	options, err = m.source.options(more)
	return options, secrets, err
}

// secret reads the volume's secret; nil: it has none. Its type must be the driver's name, as in
// Kubernetes: no other secret of the namespace was meant for the driver.
func (m *mounter) secret(ctx context.Context) (map[string][]byte, error) {
	ref := m.source.SecretRef
	if ref == nil || ref.Name == "" {
		return nil, nil
	}
	if !m.plugin.secretArguments {
		return nil, volume.Invalid("flexVolume.secretRef", "cannot be used here: a driver gets a secret as an argument, which every user of the node can read in /proc; "+
			"use a type of volume that keeps it, or allow it (flexvolume.Config.SecretArguments, podvol --flexvolume-secrets)")
	}
	namespace := ref.Namespace
	if namespace == "" || m.source.inline {
		namespace = m.Pod.Namespace
	}
	secrets, err := volume.Role[volume.SecretGetter](m.Host)
	if err != nil {
		return nil, err
	}
	secret, err := secrets.GetSecret(ctx, namespace, ref.Name)
	if err != nil {
		return nil, fmt.Errorf("the secret of the volume: %w", err)
	}
	if string(secret.Type) != m.source.Driver {
		return nil, volume.Invalid("flexVolume.secretRef", "names secret %s/%s of type %.128q, which must be %s, the driver's name", namespace, ref.Name, secret.Type, m.source.Driver)
	}
	return secret.Data, nil
}
