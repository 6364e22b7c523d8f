package iscsi

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
)

const (
	seedIQN    = "iqn.2001-04.com.example:storage.disk1"
	seedPortal = "10.0.0.1:3260"
)

// portals are what is known of the forms of a portal, good and bad.
func portals() []string {
	return []string{
		seedPortal, "10.0.0.1", "nas", "nas.example.com:860", "nas-iqn.example.com", "nas-iqn.2001-04.com:3260", "[fd00::1]:3260", "[fd00::1]", "fd00::1", "fd00::1:3260",
		"[fe80::1%eth0]:3260", "fe80::1%eth0", "fe80::1%../x", "::", "::1", "[::1", "::1]", "[]:3260", ":", ":3260", "", "nas:", "nas:0", "nas:65535", "nas:65536", "nas:-1", "nas:+1", "nas:03260",
		"nas:http", "-p", "--login", ".", "..", "../nas", "nas/..", "na s", "nas\n", "nas\x00", "1.2.3.4:3260,1", "[nas]:3260", "[[::1]]:3260", strings.Repeat("a", 254),
	}
}

// What is taken for a portal can be an argument of a program and a part of a path, and reads the
// same wherever it is written.
func FuzzPortal(f *testing.F) {
	for _, given := range portals() {
		f.Add(given)
	}
	f.Fuzz(func(t *testing.T, given string) {
		name, portal, err := parsePortal(given)
		if err != nil {
			return
		}
		if portal.Port < 1 || portal.Port > 65535 || portal.Host == "" || strings.HasPrefix(portal.Host, "-") || strings.ContainsAny(name+portal.Host, "/ \t\n\x00,") {
			t.Errorf("%q is taken for %q, %+v", given, name, portal)
		}
		for _, again := range []string{name, net.JoinHostPort(portal.Host, strconv.Itoa(portal.Port))} {
			if _, same, err := parsePortal(again); err != nil || same != portal {
				t.Errorf("%q is %+v, and %q is %+v (%v)", given, portal, again, same, err)
			}
		}
	})
}

// The directory of every volume that is accepted says which disk it is, also where the record is
// lost.
func FuzzPath(f *testing.F) {
	for _, portal := range portals() {
		f.Add(portal, seedIQN, int32(0), "", "", "pv1")
	}
	for _, iqn := range []string{
		"eui.02004567A425678D", "naa.52004567BA64678D", "naa.62004567BA64678D0123456789ABCDEF", "iqn.2001-04.com.example", "iqn.2001-04.com.example:a-lun-1", "iqn.2001-04.com.example:x-iqn.2001-04.y",
		"iqn.2001-04.com.example:..", "iqn.2001-04.com.example:/etc", "IQN.2001-04.com.example", "iqn.", "", "naa.1", "iqn.2001-04.com.example:" + strings.Repeat("a", 200),
	} {
		f.Add(seedPortal, iqn, int32(255), "iface0", "iqn.2001-04.com.example:me", "pv1")
		f.Add("[fd00::1]:3260", iqn, int32(256), "-I", "", "pv1")
	}
	f.Add(seedPortal, seedIQN, int32(-1), "default", seedIQN, "../pv")
	f.Fuzz(func(t *testing.T, portal, iqn string, lun int32, face, initiator, name string) {
		pv := &v1.PersistentVolume{}
		pv.Name = name
		pv.Spec.ISCSI = &v1.ISCSIPersistentVolumeSource{TargetPortal: portal, IQN: iqn, Lun: lun, ISCSIInterface: face}
		if initiator != "" {
			pv.Spec.ISCSI.InitiatorName = &initiator
		}
		s, err := newPlugin(nil, nil, "").checked(volume.NewSpecFromPersistentVolume(pv, false))
		if err != nil {
			return
		}
		of, ok := parsePath(filepath.Join(append([]string{"/var/lib/plugin"}, s.path()...)...))
		if want := (named{face: s.face, portal: s.portals[0], iqn: iqn, lun: int(lun)}); !ok || of != want {
			t.Errorf("the path %q reads as %+v, want %+v", s.path(), of, want)
		}
		r, ok, err := readRecord(filepath.Join(t.TempDir(), recordName), filepath.Join(s.path()...))
		if err != nil || !ok {
			t.Fatalf("without a record: %v, %v", ok, err)
		}
		got, err := r.lunOf()
		if want := s.lun; err != nil || got.IQN != want.IQN || got.Number != want.Number || got.Portals[0] != want.Portals[0] || got.Interface.Name != want.Interface.Name {
			t.Errorf("without a record it is %+v, want %+v (%v)", got, want, err)
		}
	})
}

// A record is of a disk that a manifest could name, or it is refused, whatever is in the file.
func FuzzRecord(f *testing.F) {
	good, err := json.Marshal(record{VolName: "pv1", Iqn: seedIQN, Iface: "default", Lun: "0", InitIface: "default", Portals: []string{seedPortal}, ID: "wwn", Size: 1 << 30})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:len(good)/2])
	for _, change := range [][2]string{
		{`"Lun":"0"`, `"Lun":"999"`}, {`"Lun":"0"`, `"Lun":"-1"`}, {`"Lun":"0"`, `"Lun":"1\n"`}, {`"Lun":"0"`, `"Lun":0`}, {`"default"`, `"--login"`}, {`"default"`, `""`},
		{seedPortal, "-p"}, {seedPortal, ""}, {seedPortal, "[fd00::1]:3260"}, {seedIQN, "../../etc"}, {seedIQN, "eui.02004567A425678D"}, {`["` + seedPortal + `"]`, "null"},
		{`"InitiatorName":""`, `"InitiatorName":"iqn.2001-04.com.example:me"`}, {`"InitiatorName":""`, `"InitiatorName":"-T"`},
	} {
		f.Add([]byte(strings.Replace(string(good), change[0], change[1], 1)))
	}
	for _, text := range []string{"", "{", "{}", "null", "[]", "0", `"x"`, "\x00\x00\x00\x00", `{"Iqn":{}}`, `{"Portals":{}}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		file := filepath.Join(t.TempDir(), recordName)
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		r, ok, err := readRecord(file, "/no/device")
		if err != nil || !ok {
			return
		}
		lun, err := r.lunOf()
		if err != nil {
			return
		}
		if checkIQN("iqn", lun.IQN) != nil || lun.Number < 0 || lun.Number > maxLUN || len(lun.Portals) == 0 || !ownInterfaceName().MatchString(lun.Interface.Name) {
			t.Errorf("%q is taken for %+v", text, lun)
		}
		again, err := json.Marshal(&r)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, again, 0o600); err != nil {
			t.Fatal(err)
		}
		if same, ok, err := readRecord(file, "/no/device"); err != nil || !ok || !reflect.DeepEqual(r, same) {
			t.Errorf("%q reads as %+v, and as %+v once it is written again (%v)", text, r, same, err)
		}
	})
}
