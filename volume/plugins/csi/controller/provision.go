package controller

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/csiclass"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/plugins/csi/internal/csivolume"
	"github.com/podvol/podvol/volume/plugins/csi/internal/drivers"
)

// Annotations of the PersistentVolumes that are made: the secrets with which they are
// deleted and modified. They are external-provisioner's.
const (
	annDeletionSecret          = "volume.kubernetes.io/provisioner-deletion-secret-name"
	annDeletionSecretNamespace = "volume.kubernetes.io/provisioner-deletion-secret-namespace"
	annModifySecret            = "volume.kubernetes.io/controller-modify-secret-name"
	annModifySecretNamespace   = "volume.kubernetes.io/controller-modify-secret-namespace"
)

// IsMadeHere reports whether a controller of this package on this node, and no other
// provisioner, had a driver make the volume.
func (p *Plugin) IsMadeHere(pv *v1.PersistentVolume) bool {
	s := pv.Spec.CSI
	return s != nil && s.VolumeAttributes[pvapi.KeyCSIIdentity] == pvapi.CSIIdentity(string(p.Host.GetNodeName()), s.Driver)
}

// provisioner has a driver make the volume of one claim.
type provisioner struct {
	plugin  *Plugin
	options volume.VolumeOptions
	driver  string
	class   *csiclass.Class
	secrets map[csiclass.Use]*v1.SecretReference
	// source is the handle of the volume to copy; empty: the volume begins empty.
	source string
}

// ProvisionsFor is true of names that a driver may have: there is no other process that
// would provision.
func (p *Plugin) ProvisionsFor(provisioner string) bool {
	return csivolume.CheckDriverName("provisioner", provisioner) == nil
}

// NewProvisioner implements [volume.ProvisionableVolumePlugin] for the driver that the
// class names as its provisioner. Parameters that begin with csi.storage.k8s.io/ are
// Kubernetes': the file system, and the secrets of the volume. All others are the driver's,
// which alone knows them. What cannot be is a *[volume.InvalidSpecError].
func (p *Plugin) NewProvisioner(options volume.VolumeOptions) (volume.Provisioner, error) {
	m, err := p.newProvisioner(options)
	if err != nil {
		return nil, csivolume.Failed("NewProvisioner", options.PVName, err)
	}
	return m, nil
}

// NewCloner implements [volume.CloningVolumePlugin]: source must be a volume of the same
// driver. Whether the driver can copy volumes at all only its answer shows.
func (p *Plugin) NewCloner(options volume.VolumeOptions, source *v1.PersistentVolume) (volume.Provisioner, error) {
	m, err := p.newProvisioner(options)
	if err == nil {
		m.source, err = copiedHandle(source, options.Provisioner)
	}
	if err != nil {
		return nil, csivolume.Failed("NewCloner", options.PVName, err)
	}
	return m, nil
}

func copiedHandle(source *v1.PersistentVolume, driver string) (string, error) {
	s := source.Spec.CSI
	if s == nil || s.Driver != driver {
		return "", volume.Invalid("spec.dataSource", "is the claim of volume %q, which is none of driver %s, and a driver copies only its own; use a StorageClass of the driver that has made it, or copy the data yourself",
			source.Name, driver)
	}
	return s.VolumeHandle, csivolume.CheckHandle(s.VolumeHandle)
}

func (p *Plugin) newProvisioner(options volume.VolumeOptions) (*provisioner, error) {
	if err := csivolume.CheckDriverName("provisioner", options.Provisioner); err != nil {
		return nil, err
	}
	if options.PVC.Spec.Selector != nil {
		return nil, volume.Invalid("spec.selector", "cannot be met by a new volume of driver %s; remove it", options.Provisioner)
	}
	class, err := csiclass.Parse(options.Parameters)
	if err != nil {
		return nil, err
	}
	m := &provisioner{plugin: p, options: options, driver: options.Provisioner, class: class, secrets: make(map[csiclass.Use]*v1.SecretReference)}
	for _, use := range csiclass.Uses() {
		if m.secrets[use], err = class.Secret(use, options.PVName, options.PVC); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Provision has the driver make the volume by CreateVolume, under a name made of those of the
// PersistentVolume and of this node, or finds the volume that it has made under that name
// before. A machine where the same claim was declared, with its UID, gets another volume.
//
//   - Where volumes are reachable from some nodes only, the volume is made for this node,
//     if the class allows that.
//   - A volume that is smaller than the claim asks for, that does not have the content of
//     the volume to copy, or that the caller's Check refuses, is deleted again and refused, if the host's [volume.UnusedVerifier] says that no PersistentVolume has it, and nothing of it is
//     left on this node: a driver may name a volume that has another owner. Else it stays,
//     and the error leaves doubt.
//   - ResourceExhausted of a claim whose node was selected counts as a refusal: another
//     node may do, as external-provisioner has it.
//
// Errors match [ErrNotRegistered], [ErrUnreachable], [ErrNoController], [ErrRefused] or
// [ErrNoAnswer], or say what is wrong with claim and class.
func (m *provisioner) Provision(ctx context.Context, selectedNode *v1.Node, allowedTopologies []v1.TopologySelectorTerm) (*v1.PersistentVolume, error) {
	pv, err := m.provision(ctx, selectedNode, allowedTopologies)
	return pv, csivolume.Failed("Provision", m.options.PVName, err)
}

func (m *provisioner) provision(ctx context.Context, selectedNode *v1.Node, allowed []v1.TopologySelectorTerm) (*v1.PersistentVolume, error) {
	d, c, err := m.plugin.service(ctx, m.driver)
	if err != nil {
		return nil, err
	}
	r, err := m.request(c)
	if err != nil {
		return nil, err
	}
	if r.AccessibilityRequirements, err = m.plugin.requirement(ctx, d, c, allowed); err != nil {
		return nil, err
	}
	if r.Secrets, err = csivolume.Secrets(ctx, m.plugin.Host, m.secrets[csiclass.Provisioner], "CreateVolume"); err != nil {
		return nil, err
	}
	var made *csi.Volume
	err = m.plugin.control(ctx, drivers.Call{Driver: d, Method: "CreateVolume", Volume: r.Name, Secret: csivolume.ValuesOf(r.Secrets)}, func(ctx context.Context, c *drivers.Controls) error {
		response, err := c.CreateVolume(ctx, r)
		made = response.GetVolume()
		return err
	})
	if code, ok := codeOf(err); ok && code == codes.ResourceExhausted && selectedNode != nil && r.AccessibilityRequirements != nil {
		return nil, volume.NothingDone(err)
	}
	if err != nil {
		return nil, err
	}
	if err := csivolume.CheckHandle(made.GetVolumeId()); err != nil {
		return nil, fmt.Errorf("driver %s says that CreateVolume is done, and names no volume: %s", m.driver, err.Error()) // which may be there
	}
	if why := m.flaw(made, r); why != "" {
		return nil, m.giveUp(ctx, d, made, r, why)
	}
	return m.persistentVolume(made, r), nil
}

// codeOf returns the code of a call that was sent.
func codeOf(err error) (codes.Code, bool) {
	if !errors.Is(err, drivers.ErrNoAnswer) && !errors.Is(err, drivers.ErrRefused) {
		return 0, false
	}
	return status.Code(err), true
}

// flaw says why the claim cannot have what the driver says it has made; empty: it can.
func (m *provisioner) flaw(made *csi.Volume, r *csi.CreateVolumeRequest) string {
	switch {
	case made.GetCapacityBytes() > 0 && made.GetCapacityBytes() < r.CapacityRange.GetRequiredBytes():
		return fmt.Sprintf("driver %s has made %d bytes of %d", m.driver, made.CapacityBytes, r.CapacityRange.RequiredBytes)
	case m.source != made.GetContentSource().GetVolume().GetVolumeId():
		return fmt.Sprintf("driver %s has made a volume without the content of volume %.128q", m.driver, m.source)
	case m.options.Check == nil:
		return ""
	}
	if err := m.options.Check(m.persistentVolume(made, r)); err != nil {
		return fmt.Sprintf("driver %s has made volume %.128q: %s", m.driver, made.VolumeId, err.Error())
	}
	return ""
}

// giveUp deletes a volume that the claim cannot have, unless the volume has another owner.
func (m *provisioner) giveUp(ctx context.Context, d *drivers.Driver, made *csi.Volume, r *csi.CreateVolumeRequest, why string) error {
	pv := m.persistentVolume(made, r)
	verify := func(ctx context.Context) error {
		others, err := volume.Role[volume.UnusedVerifier](m.plugin.Host)
		if err != nil {
			return err
		}
		if err := others.VerifyUnused(ctx, pv); err != nil {
			return err
		}
		return m.plugin.disk.CheckUnused(&csivolume.Source{Driver: m.driver, Handle: made.VolumeId})
	}
	err := m.plugin.deleteVolume(ctx, d, &csi.DeleteVolumeRequest{VolumeId: made.VolumeId, Secrets: r.Secrets}, verify)
	if err != nil {
		return fmt.Errorf("%s; and volume %.128q is not deleted again: %s", why, made.VolumeId, err.Error()) // it is still there
	}
	return volume.NothingDone(errors.New(why))
}

// request is all of CreateVolume that claim and class say.
func (m *provisioner) request(c *drivers.Controls) (*csi.CreateVolumeRequest, error) {
	if err := c.Needs(csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, m.driver); err != nil {
		return nil, err
	}
	claim := m.options.PVC
	size := claim.Spec.Resources.Requests[v1.ResourceStorage]
	r := &csi.CreateVolumeRequest{Name: m.volumeName(), Parameters: m.class.Parameters, CapacityRange: &csi.CapacityRange{RequiredBytes: size.Value()}}
	if m.source != "" {
		if err := c.Needs(csi.ControllerServiceCapability_RPC_CLONE_VOLUME, m.driver); err != nil {
			return nil, err
		}
		r.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: m.source}}}
	}
	if limit, has := claim.Spec.Resources.Limits[v1.ResourceStorage]; has {
		r.CapacityRange.LimitBytes = limit.Value()
	}
	for _, mode := range claim.Spec.AccessModes {
		known, err := controlMode(mode, c)
		if err != nil {
			return nil, err
		}
		r.VolumeCapabilities = append(r.VolumeCapabilities, accessKind(
			&csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: known}}, m.isBlock(), m.class.FSType, m.options.MountOptions))
	}
	if a := m.options.VolumeAttributesClass; a != nil {
		if err := c.Needs(csi.ControllerServiceCapability_RPC_MODIFY_VOLUME, m.driver); err != nil {
			return nil, err
		}
		r.MutableParameters = a.Parameters
	}
	return r, nil
}

// volumeName is always the same for one claim below one root directory of one node. Others may
// have a claim of the same UID, restored from one backup, and must not get, or delete, its volume.
func (m *provisioner) volumeName() string {
	host := m.plugin.Host
	place := sha256.Sum256([]byte(string(host.GetNodeName()) + "\x00" + host.GetPluginDir(csivolume.PluginName)))
	return m.options.PVName + "-" + hex.EncodeToString(place[:4])
}

func (m *provisioner) isBlock() bool {
	return pvapi.VolumeMode(m.options.PVC.Spec.VolumeMode) == v1.PersistentVolumeBlock
}

// requirement asks for a volume that this node can reach; nil: all are.
func (p *Plugin) requirement(ctx context.Context, d *drivers.Driver, c *drivers.Controls, allowed []v1.TopologySelectorTerm) (*csi.TopologyRequirement, error) {
	if !c.Topologies {
		if len(allowed) > 0 {
			return nil, volume.Invalid("allowedTopologies", "mean nothing to driver %s, whose volumes can be reached from every node; remove them from the class", d.Name)
		}
		return nil, nil
	}
	info, err := p.nodeInfo(ctx, d)
	segments := info.GetAccessibleTopology().GetSegments()
	switch {
	case err != nil:
		return nil, volume.NothingDone(err)
	case !csiclass.Allows(allowed, segments):
		return nil, volume.Invalid("allowedTopologies", "of the class do not have this node, which driver %s has at %v", d.Name, segments)
	case len(segments) == 0:
		return nil, volume.NothingDone(fmt.Errorf("driver %s does not say where this node is (NodeGetInfo), so that its volumes cannot be made where it reaches them", d.Name))
	}
	here := []*csi.Topology{{Segments: segments}}
	return &csi.TopologyRequirement{Requisite: here, Preferred: here}, nil
}

// persistentVolume is the volume as external-provisioner writes it. What the controller of
// claims writes, as the class and the binding, is left to that.
func (m *provisioner) persistentVolume(made *csi.Volume, r *csi.CreateVolumeRequest) *v1.PersistentVolume {
	claim, pv := m.options.PVC, &v1.PersistentVolume{}
	pv.Name = m.options.PVName
	pv.Annotations = map[string]string{pvapi.AnnProvisionedBy: m.driver}
	if s := m.secrets[csiclass.Provisioner]; s != nil {
		pv.Annotations[annDeletionSecret], pv.Annotations[annDeletionSecretNamespace] = s.Name, s.Namespace
	}
	if s := m.secrets[csiclass.ControllerModify]; s != nil {
		pv.Annotations[annModifySecret], pv.Annotations[annModifySecretNamespace] = s.Name, s.Namespace
	}
	attributes := maps.Clone(made.GetVolumeContext())
	if attributes == nil {
		attributes = make(map[string]string)
	}
	attributes[pvapi.KeyCSIIdentity] = pvapi.CSIIdentity(string(m.plugin.Host.GetNodeName()), m.driver) // no time: the volume is the same however often it is asked for
	pv.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(max(made.GetCapacityBytes(), r.CapacityRange.RequiredBytes), resource.BinarySI)}
	pv.Spec.AccessModes = slices.Clone(claim.Spec.AccessModes)
	pv.Spec.VolumeMode = new(pvapi.VolumeMode(claim.Spec.VolumeMode))
	pv.Spec.PersistentVolumeReclaimPolicy = m.options.PersistentVolumeReclaimPolicy
	pv.Spec.MountOptions = slices.Clone(m.options.MountOptions)
	pv.Spec.CSI = &v1.CSIPersistentVolumeSource{
		Driver: m.driver, VolumeHandle: made.VolumeId, VolumeAttributes: attributes,
		ControllerPublishSecretRef: m.secrets[csiclass.ControllerPublish], NodeStageSecretRef: m.secrets[csiclass.NodeStage],
		NodePublishSecretRef: m.secrets[csiclass.NodePublish], ControllerExpandSecretRef: m.secrets[csiclass.ControllerExpand],
		NodeExpandSecretRef: m.secrets[csiclass.NodeExpand],
	}
	if !m.isBlock() {
		pv.Spec.CSI.FSType = m.class.FSType
	}
	topologies := make([]map[string]string, 0, len(made.GetAccessibleTopology()))
	for _, t := range made.GetAccessibleTopology() {
		topologies = append(topologies, t.GetSegments())
	}
	pv.Spec.NodeAffinity = csiclass.Affinity(topologies)
	for _, here := range r.GetAccessibilityRequirements().GetRequisite() {
		csiclass.AddNode(pv.Spec.NodeAffinity, topologies, here.GetSegments(), string(m.plugin.Host.GetNodeName()))
	}
	return pv
}
