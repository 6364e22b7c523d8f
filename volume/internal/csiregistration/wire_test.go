package csiregistration_test

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/podvol/podvol/volume/internal/csiregistration"
)

// The bytes are those of the kubelet's generated code.
func TestInfo(t *testing.T) {
	info := csiregistration.Info{Type: "CSIPlugin", Name: "a.io", Endpoint: "/s", Versions: []string{"1.0.0", "1.1"}}
	wire, err := proto.Marshal(info.Message())
	if want := []byte("\x0a\x09CSIPlugin\x12\x04a.io\x1a\x02/s\x22\x051.0.0\x22\x031.1"); err != nil || !bytes.Equal(wire, want) {
		t.Errorf("%q, %v, want %q", wire, err, want)
	}
	m := new(emptypb.Empty)
	if err := proto.Unmarshal(wire, m); err != nil {
		t.Fatal(err)
	}
	back, err := csiregistration.ParseInfo(m)
	if diff := cmp.Diff(info, back); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestStatus(t *testing.T) {
	for _, s := range []csiregistration.Status{{}, {Registered: true}, {Error: "why"}} {
		back, err := csiregistration.ParseStatus(s.Message())
		if err != nil || back != s {
			t.Errorf("%+v became %+v, %v", s, back, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("\x0a\x01a\x08\x01\x15abcd"))
	f.Fuzz(func(t *testing.T, wire []byte) {
		m := new(emptypb.Empty)
		if proto.Unmarshal(wire, m) != nil {
			return
		}
		if _, err := csiregistration.ParseInfo(m); err != nil { // protobuf has taken it
			t.Error(err)
		}
	})
}
