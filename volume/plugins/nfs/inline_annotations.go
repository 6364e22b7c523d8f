package nfs

import (
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/podcheck"
	"github.com/podvol/podvol/volume/recyclerpod"
)

// The annotations; see [InlinePolicy].
const (
	// AnnotationMountOptions followed by "/" and the name of an inline NFS
	// volume is the key of a pod's annotation with mount options.
	AnnotationMountOptions = "mount-options.podvol.io"
	// AnnotationMakeVolumeDirectory followed by "/" and the name of an inline NFS
	// volume is the key of a pod's annotation with the mode of a directory that
	// shall be made if it is missing: octal digits, "0770" or "2770".
	AnnotationMakeVolumeDirectory = "make-directory.podvol.io"
	// AnnotationMakeDirectory is the same of a PersistentVolume.
	AnnotationMakeDirectory = "podvol.io/make-directory"
)

var _ podcheck.Plugin = (*plugin)(nil)

// CheckPod implements [podcheck.Plugin]: it refuses annotations for volumes
// that are no inline NFS volumes of the pod, unreadable ones, and unknown ones of
// podvol.io and the domains below it. Whether the node's policy allows them is
// decided for the volume.
func (p *plugin) CheckPod(pod *v1.Pod) error {
	var faults []error
	for _, key := range slices.Sorted(maps.Keys(pod.Annotations)) {
		prefix, name, _ := strings.Cut(key, "/")
		if prefix != AnnotationMountOptions && prefix != AnnotationMakeVolumeDirectory {
			faults = append(faults, misspelled(key, prefix))
			continue
		}
		if name == "" {
			faults = append(faults, volume.Invalid(annotationField(key), "names no volume; write %s/<volume>", prefix))
			continue
		}
		if err := annotated(pod, key, name); err != nil {
			faults = append(faults, err)
			continue
		}
		var err error
		if prefix == AnnotationMountOptions {
			_, err = askedOptions(pod, name)
		} else {
			_, err = askedMode(pod, name)
		}
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

// misspelled refuses an annotation of podvol's that pods do not have.
func misspelled(key, domain string) error {
	const ours = "podvol.io"
	switch {
	case domain != ours && !strings.HasSuffix(domain, "."+ours), key == recyclerpod.Annotation:
		return nil
	case key == AnnotationMakeDirectory:
		return volume.Invalid(annotationField(key), "is for PersistentVolumes; for a pod's own NFS volume write %s/<volume>", AnnotationMakeVolumeDirectory)
	}
	return volume.Invalid(annotationField(key), "is no annotation of podvol's for pods; there are %s/<volume> and %s/<volume>", AnnotationMountOptions, AnnotationMakeVolumeDirectory)
}

func annotationField(key string) string { return "metadata.annotations[" + strconv.Quote(key) + "]" }

// annotated refuses an annotation for a volume that is no inline NFS volume.
func annotated(pod *v1.Pod, key, name string) error {
	field := annotationField(key)
	i := slices.IndexFunc(pod.Spec.Volumes, func(v v1.Volume) bool { return v.Name == name })
	if i < 0 {
		return volume.Invalid(field, "the pod has no volume %q", name)
	}
	switch v := pod.Spec.Volumes[i]; {
	case v.NFS != nil:
		return nil
	case v.PersistentVolumeClaim != nil || v.Ephemeral != nil:
		return volume.Invalid(field, "volume %q is a claim's: mount options belong into spec.mountOptions of its PersistentVolume, and the mode of a directory to be made into the annotation %s there", name, AnnotationMakeDirectory)
	}
	return volume.Invalid(field, "volume %q is no NFS volume, and no other is mounted with options of the pod's", name)
}

// askedOptions are the options that a pod asks for, of one of its volumes.
func askedOptions(pod *v1.Pod, name string) ([]string, error) {
	key := AnnotationMountOptions + "/" + name
	asked, err := parseAsked(pod.Annotations[key])
	if err != nil {
		return nil, volume.Invalid(annotationField(key), "%v", err)
	}
	return asked, nil
}

// askedMode is the mode with which a pod wants the directory of one of its
// volumes made; nil: it shall not be.
func askedMode(pod *v1.Pod, name string) (*uint32, error) {
	return modeIn(pod.Annotations, AnnotationMakeVolumeDirectory+"/"+name)
}

// modeIn reads an annotation: three octal digits, or four with the set-group-id
// and the sticky bit. The directory's owner must be able to use it.
func modeIn(annotations map[string]string, key string) (*uint32, error) {
	value, ok := annotations[key]
	if !ok {
		return nil, nil
	}
	mode, err := strconv.ParseUint(value, 8, 32)
	if err != nil || len(value) < 3 || len(value) > 5 || mode > 0o3777 || mode&0o700 != 0o700 || value[0] == '+' {
		return nil, volume.Invalid(annotationField(key),
			`%q is no mode for a directory that its owner can use: octal digits such as "0770", "2770" with the set-group-id bit, or "1777"`, value)
	}
	return new(uint32(mode)), nil
}
