package mountrecord_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/mountrecord"
)

// envelope wraps a record's JSON as mountrecord.Encode does.
func envelope(version int, body string) []byte {
	return fmt.Appendf(nil, `{"version":%d,"record":%s}`, version, body)
}

// body cuts the record's own JSON out of an encoded record.
func body(t *testing.T, encoded []byte) string {
	t.Helper()
	_, rest, found := strings.Cut(string(encoded), `"record":`)
	if !found {
		t.Fatalf("no record in %s", encoded)
	}
	return strings.TrimSuffix(rest, "}")
}

func wantDamaged(t *testing.T, what string, data []byte) {
	t.Helper()
	if r, err := mountrecord.Decode(data, nil); r != nil || !errors.Is(err, mountrecord.ErrDamaged) {
		t.Errorf("%s: got %+v, %v, want ErrRecordDamaged", what, r, err)
	}
}

func TestTruncatedRecord(t *testing.T) {
	for _, r := range []*mountrecord.Record{inlineRecord(), persistentRecord()} {
		data := encode(t, r)
		for n := range len(data) {
			wantDamaged(t, fmt.Sprintf("the first %d of %d bytes", n, len(data)), data[:n])
		}
	}
}

func wantNewer(t *testing.T, what string, data []byte, version int) {
	t.Helper()
	r, err := mountrecord.Decode(data, nil)
	newer, ok := errors.AsType[*volume.Failure](err)
	if !ok || r != nil || !errors.Is(err, mountrecord.ErrNewer) || newer.Subject != strconv.Itoa(version) || !strings.HasSuffix(newer.What, fmt.Sprintf("up to %d", mountrecord.Version)) || newer.Advice() == "" || errors.Is(err, mountrecord.ErrDamaged) {
		t.Errorf("%s: got %+v, %v, want ErrNewer of %d", what, r, err, version)
	}
}

func TestNewerRecord(t *testing.T) {
	wantNewer(t, "the next version", envelope(3, `{"something":"else"}`), 3)
	wantNewer(t, "with a checksum", []byte(`{"version":4,"blake3":"00","record":[1]}`), 4)
	wantNewer(t, "far ahead", envelope(1000, `{}`), 1000)
}

func TestDamagedRecords(t *testing.T) {
	good := body(t, encode(t, inlineRecord()))
	if _, err := mountrecord.Decode(envelope(2, good), nil); err != nil {
		t.Fatalf("the test's own envelope: %v", err)
	}
	pvBody := body(t, encode(t, persistentRecord()))
	for name, data := range map[string][]byte{
		"empty":                 {},
		"a newline":             []byte("\n"),
		"two records":           slices.Concat(envelope(2, good), envelope(2, good)),
		"no JSON":               []byte("record\n"),
		"null":                  []byte("null\n"),
		"an array":              []byte("[]\n"),
		"no version":            []byte(`{"record":{}}` + "\n"),
		"version 0":             envelope(0, good),
		"version 1":             envelope(1, good),
		"version -1":            envelope(-1, good),
		"no record":             []byte(`{"version":2,"sha256":""}` + "\n"),
		"an empty record":       envelope(2, `{}`),
		"a null record":         envelope(2, `null`),
		"a field of wrong type": envelope(2, strings.Replace(good, `"0a1b-2c"`, `7`, 1)),
		"a UID that leads out":  envelope(2, strings.Replace(good, `"0a1b-2c"`, `"../.."`, 1)),
		"a relative path":       envelope(2, strings.Replace(good, `"path":"/`, `"path":"`, 1)),
		"a path that leads out": envelope(2, strings.Replace(good, `"path":"/var`, `"path":"/var/..`, 1)),
		"an unqualified plugin": envelope(2, strings.Replace(good, "kubernetes.io/nfs", "nfs", 1)),
		"two specs":             envelope(2, strings.TrimSuffix(good, "}")+`,"persistentVolume":{"metadata":{"name":"x"},"spec":{}}}`),
		"a name that leads out": envelope(2, strings.ReplaceAll(pvBody, `"nfs211"`, `"../../etc"`)),
		"a confirmation alone":  []byte(confirmation(t, mountrecord.Confirmation{At: time.Unix(0, 0)})),
	} {
		wantDamaged(t, name, data)
	}
}

// No input is taken for a record that could not be written again, and every
// refusal is one of the two documented ones.
func FuzzDecodeRecord(f *testing.F) {
	for _, r := range []*mountrecord.Record{inlineRecord(), persistentRecord()} {
		data, err := mountrecord.Encode(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
		_, rest, _ := bytes.Cut(data, []byte(`"record":`))
		f.Add(bytes.TrimSuffix(rest, []byte("}")))
	}
	f.Add([]byte(`{"version":2,"sha256":"","record":{}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		fuzzDecode(t, data)
		fuzzDecode(t, envelope(mountrecord.Version, string(data)))
	})
}

func fuzzDecode(t *testing.T, data []byte) {
	t.Helper()
	r, err := mountrecord.Decode(data, nil)
	if err != nil {
		newer := errors.Is(err, mountrecord.ErrNewer)
		if r != nil || newer == errors.Is(err, mountrecord.ErrDamaged) {
			t.Fatalf("got %+v, %v", r, err)
		}
		return
	}
	again := encode(t, r)
	reread, err := mountrecord.Decode(again, nil)
	if err != nil {
		t.Fatalf("%s\nwas read, written as\n%s\nand not read again: %v", data, again, err)
	}
	if third := encode(t, reread); !bytes.Equal(again, third) {
		t.Fatalf("the record changes each time it is written:\n%s\n%s", again, third)
	}
}

// A record of this version with a field that only a newer build knows can
// still be used to tear its volume down.
func TestUnknownFieldIsPassedOver(t *testing.T) {
	r, err := mountrecord.Decode(envelope(2, `{"podUID":"u","pod":{},"volumes":["v"],"plugin":"example.com/x","path":"/p","new":1,`+
		`"inlineVolume":{"name":"v","newSource":{}}}`), nil)
	if err != nil || r.PodUID != "u" || r.Spec().Name() != "v" {
		t.Errorf("%+v, %v", r, err)
	}
}
