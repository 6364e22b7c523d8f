package volume

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/kubeapi"
)

// volumeSource checks what can be told without a plugin.
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
	if s := v.PersistentVolumeClaim; s != nil {
		c.required(field+".persistentVolumeClaim.claimName", s.ClaimName)
	}
	if s := v.CSI; s != nil {
		c.required(field+".csi.driver", s.Driver)
	}
	if s := v.Ephemeral; s != nil && s.VolumeClaimTemplate == nil {
		c.refuse(field+".ephemeral.volumeClaimTemplate", "is missing")
	}
	c.files(field, v)
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
	if _, err := HugePageSize(field+".medium", s.Medium); err != nil {
		c.faults = append(c.faults, err)
	}
}

// ValidateEmptyDir refuses an emptyDir whose medium, sizeLimit or mode the API server
// would refuse, as [ValidatePodVolumes] does; fields begin with "emptyDir".
func ValidateEmptyDir(s *v1.EmptyDirVolumeSource) error {
	var c checker
	c.emptyDir("emptyDir", s)
	return c.err()
}

// HugePageSize returns the page size in bytes of a medium "HugePages-<size>".
// What names the medium in the error, an *[InvalidSpecError].
func HugePageSize(what string, medium v1.StorageMedium) (int64, error) {
	size, ok := strings.CutPrefix(string(medium), string(v1.StorageMediumHugePagesPrefix))
	if !ok {
		return 0, Invalid(what, `%q is not one of "", Memory, HugePages, or HugePages-<size> such as HugePages-2Mi`, medium)
	}
	quantity, err := resource.ParseQuantity(size)
	if err != nil {
		return 0, Invalid(what, "%q has no valid page size (%v); an example of one is HugePages-2Mi", medium, err)
	}
	pages := quantity.Value()
	if pages <= 0 || pages&(pages-1) != 0 {
		return 0, Invalid(what, "%q: a page size is a power of two, such as 2Mi", medium)
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
	if s.Type == nil {
		return
	}
	switch *s.Type {
	case v1.HostPathUnset, v1.HostPathDirectoryOrCreate, v1.HostPathDirectory, v1.HostPathFileOrCreate,
		v1.HostPathFile, v1.HostPathSocket, v1.HostPathCharDev, v1.HostPathBlockDev:
	default:
		c.refuse(field+".type", "%q is not one of DirectoryOrCreate, Directory, FileOrCreate, File, Socket, CharDevice, BlockDevice", *s.Type)
	}
}

func (c *checker) nfs(field string, s *v1.NFSVolumeSource) {
	c.required(field+".server", s.Server)
	c.absolutePath(field+".path", s.Path)
}

func (c *checker) labelSelector(field string, s *metav1.LabelSelector) {
	if _, err := metav1.LabelSelectorAsSelector(s); err != nil {
		c.refuse(field, "%v", err)
	}
}
