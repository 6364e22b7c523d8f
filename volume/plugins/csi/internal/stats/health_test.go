package stats

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/podvol/podvol/volume/plugins/csi/internal/drivers"
)

// FuzzConditionBeside reads conditions out of answers that a driver may send.
func FuzzConditionBeside(f *testing.F) {
	condition := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 1)
	condition = protowire.AppendString(protowire.AppendTag(condition, 2, protowire.BytesType), "a disk has failed")
	f.Add(protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), condition))
	f.Add(protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), []byte{8}))
	f.Add(protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), []byte{8, 1}))
	f.Add(protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.VarintType), 1))
	f.Fuzz(func(t *testing.T, answer []byte) {
		m := new(csi.NodeGetVolumeStatsResponse)
		if proto.Unmarshal(answer, m) != nil {
			return
		}
		c := conditionBeside(func(text string) string { return drivers.Redact(text, nil) }, m)
		if c != nil && c.Abnormal == (c.Message == "") {
			t.Errorf("%+v", c)
		}
	})
}
