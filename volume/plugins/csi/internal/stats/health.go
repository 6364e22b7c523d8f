package stats

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/csi/internal/drivers"
)

// oldVolumeCondition is VOLUME_CONDITION, by which drivers before CSI 1.13 say that they tell a
// volume's condition with its size. The specification has removed the name and the field.
const oldVolumeCondition = csi.NodeServiceCapability_RPC_Type(4)

// storagePause is between two questions to a driver about its storage.
const storagePause = time.Minute

// health asks a driver for the condition of a volume.
func (m *Meter) health(ctx context.Context, d *drivers.Driver, v Volume) (*volume.Condition, error) {
	ctx, cancel := m.briefly(ctx)
	defer cancel()
	r := &csi.NodeGetVolumeHealthRequest{VolumeId: v.Handle, VolumePublishPath: v.Published}
	var answer *csi.NodeGetVolumeHealthResponse
	err := m.Drivers.Do(ctx, drivers.Call{Driver: d, Method: "NodeGetVolumeHealth", Volume: v.Handle}, func(ctx context.Context, s *drivers.Session) (err error) {
		if s.Has(csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME) {
			r.StagingTargetPath = v.Staged
		}
		answer, err = s.Node.NodeGetVolumeHealth(ctx, r)
		return err
	})
	if err != nil {
		return nil, err
	}
	var troubles []string
	for _, e := range answer.GetVolumeHealth().GetHealthStatuses() {
		if name := volumeTrouble(e.GetStatus()); name != "" {
			troubles = append(troubles, trouble(name, e.GetReason(), e.GetMessage()))
		}
	}
	return conditionOf(m.Drivers.Redact, troubles), nil
}

// volumeTrouble is the API's word for a condition of a volume; empty: it is not known here, and
// the specification has it ignored.
func volumeTrouble(status csi.VolumeHealthErrorType) string {
	switch status {
	case csi.VolumeHealthErrorType_INACCESSIBLE:
		return "Inaccessible"
	case csi.VolumeHealthErrorType_DATA_LOSS:
		return "DataLoss"
	case csi.VolumeHealthErrorType_DEGRADED:
		return "Degraded"
	}
	return ""
}

func trouble(name, reason, message string) string {
	if reason != "" {
		name += " (" + reason + ")"
	}
	if message != "" {
		name += ": " + message
	}
	return name
}

// conditionOf joins what is wrong, without secrets; nothing is the normal condition.
func conditionOf(redact func(string) string, troubles []string) *volume.Condition {
	return &volume.Condition{Abnormal: len(troubles) > 0, Message: redact(strings.Join(troubles, "; "))}
}

// conditionBeside reads VolumeCondition (abnormal = 1, message = 2), which was field 2 of the
// answer; nil: it is not there, or is none.
func conditionBeside(redact func(string) string, answer *csi.NodeGetVolumeStatsResponse) *volume.Condition {
	text, found := field(answer.ProtoReflect().GetUnknown(), 2, protowire.BytesType)
	if !found {
		return nil
	}
	abnormal, _ := field(text, 1, protowire.VarintType)
	message, _ := field(text, 2, protowire.BytesType)
	if truth, _ := protowire.ConsumeVarint(abnormal); len(abnormal) == 0 || truth == 0 {
		return conditionOf(redact, nil)
	}
	return conditionOf(redact, []string{cmp.Or(string(message), "the driver does not say what is wrong")})
}

// field returns the last field of a number and a type in a message: the bytes of a varint, or
// the content of bytes. What cannot be read has no fields.
func field(message []byte, number protowire.Number, kind protowire.Type) (value []byte, found bool) {
	for len(message) > 0 {
		n, t, size := protowire.ConsumeTag(message)
		if size < 0 {
			return nil, false
		}
		message = message[size:]
		if size = protowire.ConsumeFieldValue(n, t, message); size < 0 {
			return nil, false
		}
		if n == number && t == kind {
			value, found = message[:size], true
			if t == protowire.BytesType {
				value, _ = protowire.ConsumeBytes(message)
			}
		}
		message = message[size:]
	}
	return value, found
}

// askStorage asks a driver for the condition of its storage, at most once a minute, and at the
// occasion of a measurement. [drivers.Status] has it. A failure leaves what was told before.
func (m *Meter) askStorage(ctx context.Context, d *drivers.Driver, s *drivers.Session) {
	if s.Has(csi.NodeServiceCapability_RPC_GET_STORAGE_HEALTH) && d.StorageIsDue(storagePause) {
		_ = m.storageHealth(ctx, d)
	}
}

// storageHealth asks without regard to the last time.
func (m *Meter) storageHealth(ctx context.Context, d *drivers.Driver) error {
	ctx, cancel := m.briefly(ctx)
	defer cancel()
	var answer *csi.NodeGetStorageHealthResponse
	err := m.Drivers.Do(ctx, drivers.Call{Driver: d, Method: "NodeGetStorageHealth"}, func(ctx context.Context, s *drivers.Session) (err error) {
		answer, err = s.Node.NodeGetStorageHealth(ctx, &csi.NodeGetStorageHealthRequest{})
		return err
	})
	if err != nil {
		return err
	}
	var troubles []string
	for _, b := range answer.GetBackendHealth() {
		if name := storageTrouble(b.GetStatus()); name != "" {
			troubles = append(troubles, trouble(name, b.GetReason(), b.GetMessage())+affected(b.GetVolumeCapability()))
		}
	}
	condition := conditionOf(m.Drivers.Redact, troubles)
	if d.SetStorage(condition) && condition.Abnormal {
		m.Logger.Warn("the storage of a CSI driver is not in order", "driver", d.Name, "condition", condition.Message)
	}
	return nil
}

func storageTrouble(status csi.StorageHealthErrorType) string {
	switch status {
	case csi.StorageHealthErrorType_STORAGE_UNREACHABLE:
		return "StorageUnreachable"
	case csi.StorageHealthErrorType_STORAGE_DEGRADED:
		return "StorageDegraded"
	}
	return ""
}

// affected says which volumes a condition of the storage is about; empty: all.
func affected(c *csi.VolumeCapability) string {
	if c == nil {
		return ""
	}
	kind := "file system"
	if c.GetBlock() != nil {
		kind = "block"
	}
	return fmt.Sprintf(" [%s volumes of access mode %v]", kind, c.GetAccessMode().GetMode())
}
