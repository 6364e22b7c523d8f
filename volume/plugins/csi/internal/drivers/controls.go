package drivers

import (
	"context"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
)

// Controls has the capabilities of a driver's Controller service. A session asks for them once.
type Controls struct {
	csi.ControllerClient
	can     []csi.ControllerServiceCapability_RPC_Type
	service bool // there is one
	// Topologies: volumes are reachable from some nodes only.
	Topologies bool
}

// Has reports whether the service offers a call.
func (c *Controls) Has(rpc csi.ControllerServiceCapability_RPC_Type) bool {
	return slices.Contains(c.can, rpc)
}

// Controls asks what the Controller service can do. Of several callers one asks.
func (s *Session) Controls(ctx context.Context) (*Controls, error) {
	select {
	case s.asking <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-s.asking }()
	if s.known != nil {
		return s.known, nil
	}
	c := &Controls{ControllerClient: csi.NewControllerClient(s.Conn)}
	plugin, err := csi.NewIdentityClient(s.Conn).GetPluginCapabilities(ctx, &csi.GetPluginCapabilitiesRequest{})
	if err != nil {
		return nil, s.driver.set.failedCall("GetPluginCapabilities", s.driver.Name, "", err)
	}
	for _, one := range plugin.GetCapabilities() {
		switch one.GetService().GetType() {
		case csi.PluginCapability_Service_CONTROLLER_SERVICE:
			c.service = true
		case csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS:
			c.Topologies = true
		}
	}
	if c.service {
		can, err := c.ControllerGetCapabilities(ctx, &csi.ControllerGetCapabilitiesRequest{})
		if err != nil {
			return nil, s.driver.set.failedCall("ControllerGetCapabilities", s.driver.Name, "", err)
		}
		for _, one := range can.GetCapabilities() {
			c.can = append(c.can, one.GetRpc().GetType())
		}
	}
	s.known = c
	return c, nil
}

// Needs refuses a call that the driver does not offer.
func (c *Controls) Needs(rpc csi.ControllerServiceCapability_RPC_Type, driver string) error {
	if c.Has(rpc) {
		return nil
	}
	return volume.NothingDone(&volume.Failure{Cause: ErrNoController, Subject: driver, What: fmt.Sprintf("driver %s does not offer %v at its socket", driver, rpc),
		Next: "give the socket of its controller, if it is another one, or make the volume by the means of its storage"})
}

// AccessMode is a driver's word for a mode. perPod: it tells one pod from one node.
func AccessMode(mode v1.PersistentVolumeAccessMode, perPod bool) (csi.VolumeCapability_AccessMode_Mode, error) {
	switch {
	case mode == v1.ReadWriteOnce && perPod:
		return csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER, nil
	case mode == v1.ReadWriteOncePod && perPod:
		return csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER, nil
	case mode == v1.ReadWriteOnce || mode == v1.ReadWriteOncePod:
		return csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, nil
	case mode == v1.ReadOnlyMany:
		return csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, nil
	case mode == v1.ReadWriteMany:
		return csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, nil
	}
	return 0, volume.Invalid("accessModes", "%q is unknown", mode)
}
