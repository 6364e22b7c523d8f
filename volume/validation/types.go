package validation

import (
	"fmt"
	"maps"
	"net"
	"reflect"
	"regexp"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/podvol/podvol/util/kubeapi"
	"github.com/podvol/podvol/util/lazyregexp"
	"github.com/podvol/podvol/volume"
)

// requiredFields are the required fields of a source type. The field of a field,
// such as secretRef.name, is required only if the outer field is set.
func requiredFields(sourceType string, persistent bool) []string {
	switch sourceType {
	case "awsElasticBlockStore", "portworxVolume":
		return []string{"volumeID"}
	case "azureDisk":
		return []string{"diskName", "diskURI"}
	case "azureFile":
		return []string{"secretName", "shareName"}
	case "cephfs":
		return []string{"monitors"}
	case "cinder":
		return withSecret(persistent, "volumeID")
	case "csi":
		if persistent {
			return []string{"volumeHandle"}
		}
		return []string{"nodePublishSecretRef.name"}
	case "ephemeral":
		return []string{"volumeClaimTemplate"}
	case "flexVolume":
		return []string{"driver"}
	case "gcePersistentDisk":
		return []string{"pdName"}
	case "gitRepo":
		return []string{"repository"}
	case "glusterfs":
		return []string{"endpoints", "path"}
	case "image":
		return []string{"reference"}
	case "iscsi":
		if persistent {
			return []string{"targetPortal", "iqn", "secretRef.name"}
		}
		return []string{"targetPortal", "iqn"}
	case "persistentVolumeClaim":
		return []string{"claimName"}
	case "photonPersistentDisk":
		return []string{"pdID"}
	case "quobyte":
		return []string{"registry", "volume"}
	case "rbd":
		return []string{"monitors", "image"}
	case "scaleIO":
		return []string{"gateway", "system", "volumeName"}
	case "storageos":
		return withSecret(persistent, "volumeName")
	case "vsphereVolume":
		return []string{"volumePath"}
	}
	return nil
}

func withSecret(persistent bool, fields ...string) []string {
	if persistent {
		fields = append(fields, "secretRef.namespace")
	}
	return append(fields, "secretRef.name")
}

// typeChecker checks the source types that podvol has no plugin for.
type typeChecker struct{ *faults }

// otherTypes checks the source types that podvol has no plugin for, by the API
// server's rules: users may register plugins for them. Source is a VolumeSource
// or a PersistentVolumeSource. name is the volume's name.
func (c typeChecker) otherTypes(at, name string, sources reflect.Value) {
	persistent := sources.Type() == reflect.TypeFor[v1.PersistentVolumeSource]()
	for i := range sources.NumField() {
		source := sources.Field(i)
		if source.Kind() != reflect.Pointer || source.IsNil() {
			continue
		}
		sourceType := jsonName(sources.Type().Field(i))
		at := at + "." + sourceType
		for _, field := range requiredFields(sourceType, persistent) {
			if lacks(source, strings.Split(field, ".")) {
				c.refuse(at+"."+field, "must not be empty; set it")
			}
		}
		c.typeRules(at, name, source.Interface())
	}
}

func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

// lacks reports whether a field, found by its name in a manifest, is empty. A
// field below an unset field is not lacking.
func lacks(source reflect.Value, path []string) bool {
	if source.Kind() == reflect.Pointer {
		if source.IsNil() || len(path) == 0 {
			return source.IsNil() && len(path) == 0
		}
		source = source.Elem()
	}
	if source.Kind() == reflect.Slice {
		return source.Len() == 0
	}
	if len(path) == 0 {
		return source.IsZero()
	}
	for _, f := range reflect.VisibleFields(source.Type()) {
		if jsonName(f) == path[0] {
			return lacks(source.FieldByIndex(f.Index), path[1:])
		}
	}
	return false
}

// typeRules checks the rules beyond required fields.
func (c typeChecker) typeRules(at, name string, source any) {
	switch s := source.(type) {
	case *v1.AWSElasticBlockStoreVolumeSource:
		c.between(at+".partition", int64(s.Partition), 0, 255)
	case *v1.GCEPersistentDiskVolumeSource:
		c.between(at+".partition", int64(s.Partition), 0, 255)
	case *v1.GitRepoVolumeSource:
		c.localPath(at+".directory", s.Directory)
	case *v1.ISCSIVolumeSource:
		c.iscsi(at, name, s.TargetPortal, s.IQN, s.InitiatorName, s.Lun, (s.DiscoveryCHAPAuth || s.SessionCHAPAuth) && s.SecretRef == nil)
	case *v1.ISCSIPersistentVolumeSource:
		c.iscsi(at, name, s.TargetPortal, s.IQN, s.InitiatorName, s.Lun, (s.DiscoveryCHAPAuth || s.SessionCHAPAuth) && s.SecretRef == nil)
	case *v1.FCVolumeSource:
		c.fibreChannel(at, s)
	case *v1.GlusterfsPersistentVolumeSource:
		if ns := s.EndpointsNamespace; ns != nil {
			c.names(at+".endpointsNamespace", *ns, validation.IsDNS1123Label)
		}
	case *v1.FlockerVolumeSource:
		c.flocker(at, s)
	case *v1.QuobyteVolumeSource:
		c.quobyte(at, s)
	case *v1.FlexVolumeSource:
		c.flexOptions(at, s.Options)
	case *v1.FlexPersistentVolumeSource:
		c.flexOptions(at, s.Options)
	case *v1.AzureDiskVolumeSource:
		c.azureDisk(at, s)
	case *v1.AzureFilePersistentVolumeSource:
		if s.SecretNamespace != nil {
			c.required(at+".secretNamespace", *s.SecretNamespace)
		}
	case *v1.StorageOSVolumeSource:
		c.storageOS(at, s.VolumeName, s.VolumeNamespace)
	case *v1.StorageOSPersistentVolumeSource:
		c.storageOS(at, s.VolumeName, s.VolumeNamespace)
	case *v1.CSIVolumeSource:
		c.csiDriver(at+".driver", s.Driver)
		if ref := s.NodePublishSecretRef; ref != nil && ref.Name != "" {
			c.names(at+".nodePublishSecretRef.name", ref.Name, validation.IsDNS1123Subdomain)
		}
	case *v1.CSIPersistentVolumeSource:
		c.persistentCSI(at, s)
	case *v1.ImageVolumeSource:
		oneOf(c.faults, at+".pullPolicy", s.PullPolicy, "", v1.PullAlways, v1.PullIfNotPresent, v1.PullNever)
	}
}

// The three forms of an iSCSI name, as the API server knows them.
var (
	iqnName = lazyregexp.New(`iqn\.\d{4}-\d{2}\.([[:alnum:]-.]+)(:[^,;*&$|\s]+)$`)
	euiName = lazyregexp.New(`^eui.[[:alnum:]]{16}$`)
	naaName = lazyregexp.New(`^naa.[[:alnum:]]{32}$`)
)

// maxISCSIDirectory is the maximal length of a volume's name and portal together,
// if an initiator is named: they are the name of its interface.
const maxISCSIDirectory = 64

func (c typeChecker) iscsi(at, name, portal, iqn string, initiator *string, lun int32, noSecret bool) {
	if iqn != "" {
		c.iscsiName(at+".iqn", iqn)
	}
	c.between(at+".lun", int64(lun), 0, 255)
	if noSecret {
		c.refuse(at+".secretRef", "is missing, and authentication by CHAP is asked for; name a secret")
	}
	if initiator == nil {
		return
	}
	c.iscsiName(at+".initiatorName", *initiator)
	if len(name+":"+portal) > maxISCSIDirectory {
		c.refuse(at+".targetPortal", "with an initiatorName, the volume's name and the portal have at most %d bytes with a colon; use a shorter name", maxISCSIDirectory)
	}
}

func (c typeChecker) iscsiName(at, name string) {
	for prefix, form := range map[string]func() *regexp.Regexp{"iqn": iqnName, "eui": euiName, "naa": naaName} {
		if strings.HasPrefix(name, prefix) && form().MatchString(name) {
			return
		}
	}
	c.refuse(at, "%q is no iSCSI name; one is iqn.2001-04.com.example:storage.disk1, eui.02004567A425678D or naa. with 32 digits", name)
}

func (c typeChecker) fibreChannel(at string, s *v1.FCVolumeSource) {
	if (len(s.TargetWWNs) == 0) == (len(s.WWIDs) == 0) {
		c.refuse(at+".targetWWNs", "must have exactly one of targetWWNs and wwids")
	}
	switch {
	case len(s.TargetWWNs) == 0:
	case s.Lun == nil:
		c.refuse(at+".lun", "is missing; targetWWNs need it")
	default:
		c.between(at+".lun", int64(*s.Lun), 0, 255)
	}
}

func (c typeChecker) flocker(at string, s *v1.FlockerVolumeSource) {
	if (s.DatasetName == "") == (s.DatasetUUID == "") {
		c.refuse(at, "must have exactly one of datasetName and datasetUUID")
	}
	if strings.Contains(s.DatasetName, "/") {
		c.refuse(at+".datasetName", "must not contain a slash: %q", s.DatasetName)
	}
}

func (c typeChecker) quobyte(at string, s *v1.QuobyteVolumeSource) {
	if len(s.Tenant) > 64 {
		c.refuse(at+".tenant", "must be a UUID of at most 64 bytes, has %d", len(s.Tenant))
	}
	if s.Registry == "" {
		return
	}
	for pair := range strings.SplitSeq(s.Registry, ",") {
		if _, _, err := net.SplitHostPort(pair); err != nil {
			c.refuse(at+".registry", "must be host:port, or several with commas between: %v", err)
			return
		}
	}
}

func (c typeChecker) flexOptions(at string, options map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(options)) {
		domain, _, _ := strings.Cut(key, "/")
		domain = "." + strings.ToLower(domain)
		if strings.HasSuffix(domain, ".kubernetes.io") || strings.HasSuffix(domain, ".k8s.io") {
			c.refuse(fmt.Sprintf("%s.options[%s]", at, key), "kubernetes.io and k8s.io are reserved; use another key")
		}
	}
}

func (c typeChecker) azureDisk(at string, s *v1.AzureDiskVolumeSource) {
	if s.CachingMode != nil {
		oneOf(c.faults, at+".cachingMode", *s.CachingMode, v1.AzureDataDiskCachingNone, v1.AzureDataDiskCachingReadOnly, v1.AzureDataDiskCachingReadWrite)
	}
	if s.Kind == nil {
		return
	}
	oneOf(c.faults, at+".kind", *s.Kind, v1.AzureSharedBlobDisk, v1.AzureDedicatedBlobDisk, v1.AzureManagedDisk)
	begin := "https://"
	if *s.Kind == v1.AzureManagedDisk {
		begin = "/subscriptions/"
	}
	if s.DataDiskURI != "" && !strings.HasPrefix(s.DataDiskURI, begin) {
		c.refuse(at+".diskURI", "must begin with %s for kind %s, is %q", begin, *s.Kind, s.DataDiskURI)
	}
}

func (c typeChecker) storageOS(at, name, namespace string) {
	if name != "" {
		c.names(at+".volumeName", name, validation.IsDNS1123Label)
	}
	if namespace != "" {
		c.names(at+".volumeNamespace", namespace, validation.IsDNS1123Label)
	}
}

// maxDriverName is the longest name of a CSI driver, in bytes.
const maxDriverName = 63

func (c typeChecker) csiDriver(at, name string) {
	if len(name) > maxDriverName {
		c.refuse(at, "has %d bytes, at most %d are allowed; use the driver's own name", len(name), maxDriverName)
		return
	}
	c.names(at, strings.ToLower(name), validation.IsDNS1123Subdomain)
}

func (c typeChecker) persistentCSI(at string, s *v1.CSIPersistentVolumeSource) {
	c.csiDriver(at+".driver", s.Driver)
	for _, f := range []struct {
		name string
		ref  *v1.SecretReference
	}{
		{"controllerPublishSecretRef", s.ControllerPublishSecretRef}, {"controllerExpandSecretRef", s.ControllerExpandSecretRef},
		{"nodeStageSecretRef", s.NodeStageSecretRef}, {"nodePublishSecretRef", s.NodePublishSecretRef}, {"nodeExpandSecretRef", s.NodeExpandSecretRef},
	} {
		if f.ref != nil {
			c.names(at+"."+f.name+".name", f.ref.Name, validation.IsDNS1123Subdomain)
			c.names(at+"."+f.name+".namespace", f.ref.Namespace, validation.IsDNS1123Label)
		}
	}
}

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
	typeChecker{&c.faults}.otherTypes(field, v.Name, reflect.ValueOf(v.VolumeSource))
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
	if name := v.PersistentVolumeClaim.ClaimName; name != "" {
		c.add(volume.CheckPathSegment(field+".persistentVolumeClaim.claimName", name))
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

func (c *faults) labelSelector(at string, s *metav1.LabelSelector) {
	c.addAll(metav1validation.ValidateLabelSelector(s, metav1validation.LabelSelectorValidationOptions{}, field.NewPath(at)))
}
