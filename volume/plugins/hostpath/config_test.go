package hostpath

import "testing"

func TestInnermostBaseDecidesHoweverTheOuterIsSpelt(t *testing.T) {
	c := ProvisionConfig{Bases: []Base{{Path: "/data////////////"}, {Path: "/data/private", Namespaces: []string{"ops"}}}}
	base, ok := c.baseOf("/data/private/x")
	if !ok || base.allows("shop") || !base.allows("ops") {
		t.Errorf("base %+v decides about what is in /data/private", base)
	}
	if base, ok = c.baseOf("/data/x"); !ok || !base.allows("shop") {
		t.Errorf("base %+v decides about what is in /data", base)
	}
}
