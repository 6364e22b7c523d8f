package ceph

import (
	"context"
	"encoding/base64"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podvol/podvol/volume"
)

// silent is a name server that does not answer.
type silent struct{}

func (silent) LookupNetIP(ctx context.Context, _, _ string) ([]netip.Addr, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestNamesAreNotWaitedForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		monitors, err := ParseMonitors("monitors", []string{"a", "b", "10.0.0.1"})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := Resolve(t.Context(), silent{}, monitors); err != nil || got != "10.0.0.1:6789" {
			t.Errorf("with an address: %q, %v", got, err)
		}
		if _, err := Resolve(t.Context(), silent{}, monitors[:2]); !errors.Is(err, context.DeadlineExceeded) || volume.IsUncertain(err) {
			t.Errorf("names alone: %v", err)
		}
		if waited := time.Since(begun); waited != 2*resolveTimeout {
			t.Errorf("waited for %v", waited)
		}
	})
}

// crowd is a name with more addresses than the kernel takes.
type crowd struct{}

func (crowd) LookupNetIP(context.Context, string, string) (all []netip.Addr, err error) {
	for a := netip.MustParseAddr("10.0.0.1"); len(all) < 1000; a = a.Next() {
		all = append(all, a)
	}
	return all, nil
}

func TestNamesWithManyAddresses(t *testing.T) {
	got, err := Resolve(t.Context(), crowd{}, []Monitor{{"mon", 1}})
	if addresses, bad := SplitAddresses(got); err != nil || bad != nil || len(addresses) != maxMonitors {
		t.Errorf("%d addresses, %v, %v", len(addresses), err, bad)
	}
}

func FuzzKeyring(f *testing.F) {
	key := base64.StdEncoding.EncodeToString(append([]byte{1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0}, make([]byte, 16)...))
	f.Add("[client.admin]\n key = " + key + "\n")
	f.Add(key + "\n")
	f.Add("[client.admin]\nkey = \"" + key + "\"\n[client.admin]\nkey=x")
	f.Add("[client.admin\nkey")
	f.Fuzz(func(t *testing.T, text string) {
		if got := keyIn([]byte(text), "admin"); isKey(got) && (!strings.Contains(text, got) || strings.ContainsAny(got, " ,\n\"")) {
			t.Errorf("%q of %q", got, text)
		}
	})
}
