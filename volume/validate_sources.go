package volume

import (
	"fmt"
	"path"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Bounds of a projected token's life in seconds, as in the API.
const (
	minTokenSeconds = 600
	maxTokenSeconds = 1 << 32
)

const maxMode = 0o777

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

// files checks the sources that are made of files.
func (c *checker) files(field string, v *v1.Volume) {
	if s := v.ConfigMap; s != nil {
		field := field + ".configMap"
		c.required(field+".name", s.Name)
		c.mode(field+".defaultMode", s.DefaultMode)
		c.items(field, s.Items, nil)
	}
	if s := v.Secret; s != nil {
		field := field + ".secret"
		c.required(field+".secretName", s.SecretName)
		c.mode(field+".defaultMode", s.DefaultMode)
		c.items(field, s.Items, nil)
	}
	if s := v.DownwardAPI; s != nil {
		field := field + ".downwardAPI"
		c.mode(field+".defaultMode", s.DefaultMode)
		c.downwardItems(field, s.Items, make(map[string]string))
	}
	if s := v.Projected; s != nil {
		c.projected(field+".projected", s)
	}
}

func (c *checker) emptyDir(field string, s *v1.EmptyDirVolumeSource) {
	if s.SizeLimit != nil {
		c.notNegative(field+".sizeLimit", *s.SizeLimit)
	}
	size, huge := strings.CutPrefix(string(s.Medium), string(v1.StorageMediumHugePagesPrefix))
	switch {
	case s.Medium == v1.StorageMediumDefault, s.Medium == v1.StorageMediumMemory, s.Medium == v1.StorageMediumHugePages:
	case !huge:
		c.refuse(field+".medium", "%q is not one of \"\", Memory, HugePages, HugePages-<size>", s.Medium)
	default:
		if q, err := resource.ParseQuantity(size); err != nil || q.Sign() <= 0 {
			c.refuse(field+".medium", "%q has no valid page size; an example of one is HugePages-2Mi", s.Medium)
		}
	}
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

func (c *checker) mode(field string, mode *int32) {
	if mode != nil && (*mode < 0 || *mode > maxMode) {
		c.refuse(field, "%d (%#o) is not between 0 and 511 (0777 octal)", *mode, *mode)
	}
}

// filePath checks the path of a projected file and that no other file of the
// volume has it; taken maps paths to the fields they come from and may be nil.
func (c *checker) filePath(field, p string, taken map[string]string) {
	c.required(field, p)
	c.localPath(field, p)
	if strings.HasPrefix(p, "..") && p != ".." && !strings.HasPrefix(p, "../") {
		c.refuse(field, "%q must not begin with \"..\"; such names are reserved", p)
	}
	if taken == nil || p == "" {
		return
	}
	if first, twice := taken[path.Clean(p)]; twice {
		c.refuse(field, "%q is the path of %s already", p, first)
		return
	}
	taken[path.Clean(p)] = field
}

func (c *checker) items(field string, items []v1.KeyToPath, taken map[string]string) {
	if taken == nil {
		taken = make(map[string]string, len(items))
	}
	for i, item := range items {
		field := fmt.Sprintf("%s.items[%d]", field, i)
		c.required(field+".key", item.Key)
		c.filePath(field+".path", item.Path, taken)
		c.mode(field+".mode", item.Mode)
	}
}

func (c *checker) downwardItems(field string, items []v1.DownwardAPIVolumeFile, taken map[string]string) {
	for i, item := range items {
		field := fmt.Sprintf("%s.items[%d]", field, i)
		c.filePath(field+".path", item.Path, taken)
		c.mode(field+".mode", item.Mode)
		if (item.FieldRef == nil) == (item.ResourceFieldRef == nil) {
			c.refuse(field, "must have exactly one of fieldRef and resourceFieldRef")
		}
	}
}

func (c *checker) projected(field string, s *v1.ProjectedVolumeSource) {
	c.mode(field+".defaultMode", s.DefaultMode)
	taken := make(map[string]string)
	for i := range s.Sources {
		c.projection(fmt.Sprintf("%s.sources[%d]", field, i), &s.Sources[i], taken)
	}
}

func (c *checker) projection(field string, p *v1.VolumeProjection, taken map[string]string) {
	if types := projectionTypes(p); len(types) != 1 {
		c.refuse(field, "must have exactly one source, has %s", countSources(types))
	}
	if s := p.ConfigMap; s != nil {
		c.required(field+".configMap.name", s.Name)
		c.items(field+".configMap", s.Items, taken)
	}
	if s := p.Secret; s != nil {
		c.required(field+".secret.name", s.Name)
		c.items(field+".secret", s.Items, taken)
	}
	if s := p.DownwardAPI; s != nil {
		c.downwardItems(field+".downwardAPI", s.Items, taken)
	}
	if s := p.ServiceAccountToken; s != nil {
		field := field + ".serviceAccountToken"
		c.filePath(field+".path", s.Path, taken)
		if e := s.ExpirationSeconds; e != nil && (*e < minTokenSeconds || *e > maxTokenSeconds) {
			c.refuse(field+".expirationSeconds", "%d is not between %d and %d", *e, minTokenSeconds, int64(maxTokenSeconds))
		}
	}
	if s := p.ClusterTrustBundle; s != nil {
		c.trustBundle(field+".clusterTrustBundle", s, taken)
	}
}

func projectionTypes(p *v1.VolumeProjection) (types []string) {
	for _, t := range []struct {
		name string
		set  bool
	}{
		{"secret", p.Secret != nil}, {"downwardAPI", p.DownwardAPI != nil}, {"configMap", p.ConfigMap != nil},
		{"serviceAccountToken", p.ServiceAccountToken != nil}, {"clusterTrustBundle", p.ClusterTrustBundle != nil},
		{"podCertificate", p.PodCertificate != nil},
	} {
		if t.set {
			types = append(types, t.name)
		}
	}
	return types
}

func (c *checker) trustBundle(field string, s *v1.ClusterTrustBundleProjection, taken map[string]string) {
	c.filePath(field+".path", s.Path, taken)
	if (s.Name == nil) == (s.SignerName == nil) {
		c.refuse(field, "must have exactly one of name and signerName")
	}
	c.labelSelector(field+".labelSelector", s.LabelSelector)
}

func (c *checker) labelSelector(field string, s *metav1.LabelSelector) {
	if _, err := metav1.LabelSelectorAsSelector(s); err != nil {
		c.refuse(field, "%v", err)
	}
}
