package validation

import (
	"reflect"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/podvol/podvol/util/kubeapi"
	"github.com/podvol/podvol/volume"
)

// volumeSource checks a source as far as that needs no plugin.
func (c *checker) volumeSource(field string, v *v1.Volume) {
	if s := v.EmptyDir; s != nil {
		c.emptyDir(field+".emptyDir", s)
	}
	if s := v.HostPath; s != nil {
		c.hostPath(field+".hostPath", s)
	}
	if s := v.NFS; s != nil {
		c.nfs(field+".nfs", s)
	}
	c.otherTypes(field, v.Name, reflect.ValueOf(v.VolumeSource))
	c.files(field, v)
}

// ephemeralClaim checks the claim of an ephemeral volume. It also checks that no
// other volume names that claim: the claim's owner would be unclear.
func (c *checker) ephemeralClaim(field string, v *v1.Volume, pod *v1.Pod) {
	if v.Ephemeral != nil {
		if made := pod.Name + "-" + v.Name; len(made) > validation.DNS1123SubdomainMaxLength {
			c.refuse(field+".name", "the volume's claim would be named %q, which has more than %d bytes; shorten it or the pod's name", made, validation.DNS1123SubdomainMaxLength)
		}
		if template := v.Ephemeral.VolumeClaimTemplate; template != nil {
			c.claimTemplate(field+".ephemeral.volumeClaimTemplate", template)
		}
	}
	if v.PersistentVolumeClaim == nil {
		return
	}
	for i := range pod.Spec.Volumes {
		other := &pod.Spec.Volumes[i]
		if other.Ephemeral != nil && v.PersistentVolumeClaim.ClaimName == pod.Name+"-"+other.Name {
			c.refuse(field+".persistentVolumeClaim.claimName", "%q is the claim of the ephemeral volume %q; name another, or mount that volume", v.PersistentVolumeClaim.ClaimName, other.Name)
		}
	}
}

func (c *checker) emptyDir(field string, s *v1.EmptyDirVolumeSource) {
	if s.SizeLimit != nil {
		c.notNegative(field+".sizeLimit", *s.SizeLimit)
	}
	if m := kubeapi.EmptyDirMode(s); m != nil && (*m < 0 || *m > maxDirMode) {
		c.refuse(field+".mode", "must be between 0 and 01777 (1023), is %#o (%d)", *m, *m)
	}
	switch s.Medium {
	case v1.StorageMediumDefault, v1.StorageMediumMemory, v1.StorageMediumHugePages:
		return
	}
	_, err := HugePageSize(field+".medium", s.Medium)
	c.add(err)
}

// EmptyDir refuses an emptyDir whose medium, sizeLimit or mode the API
// server would refuse, as [PodVolumes] does. The fields begin with
// "emptyDir".
func EmptyDir(s *v1.EmptyDirVolumeSource) error {
	var c checker
	c.emptyDir("emptyDir", s)
	return c.err()
}

// HugePageSize returns the page size in bytes of a medium "HugePages-<size>". The
// error is an *[volume.InvalidSpecError]; it names the medium by the argument what.
func HugePageSize(what string, medium v1.StorageMedium) (int64, error) {
	size, ok := strings.CutPrefix(string(medium), string(v1.StorageMediumHugePagesPrefix))
	if !ok {
		return 0, volume.Invalid(what, `%q is not one of "", Memory, HugePages, or HugePages-<size> such as HugePages-2Mi`, medium)
	}
	quantity, err := resource.ParseQuantity(size)
	if err != nil {
		return 0, volume.Invalid(what, "%q has no valid page size (%v); an example of one is HugePages-2Mi", medium, err)
	}
	pages := quantity.Value()
	if pages <= 0 || pages&(pages-1) != 0 {
		return 0, volume.Invalid(what, "%q: a page size must be a power of two, such as 2Mi", medium)
	}
	return pages, nil
}

func (c *checker) notNegative(field string, q resource.Quantity) {
	if q.Sign() < 0 {
		c.refuse(field, "%s must not be negative", q.String())
	}
}

func (c *checker) hostPath(field string, s *v1.HostPathVolumeSource) {
	c.absolutePath(field+".path", s.Path)
	if s.Type != nil {
		oneOf(&c.faults, field+".type", *s.Type, v1.HostPathUnset, v1.HostPathDirectoryOrCreate, v1.HostPathDirectory, v1.HostPathFileOrCreate,
			v1.HostPathFile, v1.HostPathSocket, v1.HostPathCharDev, v1.HostPathBlockDev)
	}
}

func (c *checker) nfs(at string, s *v1.NFSVolumeSource) {
	c.required(at+".server", s.Server)
	c.absolutePath(at+".path", s.Path)
}

func (c *checker) labelSelector(at string, s *metav1.LabelSelector) {
	c.addAll(metav1validation.ValidateLabelSelector(s, metav1validation.LabelSelectorValidationOptions{}, field.NewPath(at)))
}
