package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Whichever bit of a journal changes: it is found as damage, or what the journal
// holds is the same.
func TestEachFlippedBitIsFound(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	j, _, _, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		j.Put("a", json.RawMessage(`{"name":"Jdata-*","n":1}`)), j.Note("a", json.RawMessage(`"n"`)),
		j.Put("b", json.RawMessage(`2`)), j.Delete("b"), j.Put("uid/kubernetes.io~nfs/pv", json.RawMessage(`{"version":2}`)), j.Close(),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text = trimZeros(text)
	proof, err := readProof(path)
	if err != nil || proof.id == "" || proof.end != int64(len(text)) {
		t.Fatalf("the proof of %d bytes is %+v, %v", len(text), proof, err)
	}
	whole := parse(path, text)
	found := 0
	for bit := range 8 * len(text) {
		flipped := append(bytes.Clone(text), make([]byte, 64)...)
		flipped[bit/8] ^= 1 << (bit % 8)
		c := parse(path, flipped)
		c.exists = true
		c.compare(path, proof)
		if len(c.damaged) > 0 {
			found++
		} else if diff := cmp.Diff(whole.held, c.held); diff != "" {
			t.Errorf("bit %d of byte %d, %q: not found, and it holds something else:\n%s", bit%8, bit/8, text[bit/8], diff)
		}
	}
	t.Logf("%d bits, %d found as damage", 8*len(text), found)
}

// removeProofs leaves a journal as one of a version that made no proofs.
func removeProofs(path string) error {
	return errors.Join(os.Remove(proofPath(path)), os.Remove(witnessPath(path)))
}

// A journal that is missing says so, and that no copy of it is kept.
func TestAMissingJournalIsSaidToBeMissing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	for range 2 {
		j, _, damaged, err := Open(path)
		if err == nil {
			err = j.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		if text := errors.Join(damaged...); text != nil {
			if !strings.Contains(text.Error(), "it was missing") || !strings.Contains(text.Error(), path+".damaged-missing says so") {
				t.Error(text)
			}
			return
		}
		if err := errors.Join(os.Remove(path), os.Remove(proofPath(path))); err != nil {
			t.Fatal(err)
		}
	}
	t.Error("nobody says that it is missing")
}

// A journal that was made and is missing, emptied, cut or zeroed, at the end of
// a line or elsewhere, is not taken for a new one: by nobody, until a person
// says so. One that was never made is new, and so is one of which a crash left
// nothing but its first file.
func TestALostJournalIsNoNewOne(t *testing.T) {
	tests := map[string]struct {
		spoil func(path string, text []byte) error
		lost  bool
	}{
		"removed": {func(path string, _ []byte) error { return os.Remove(path) }, true},
		"emptied": {func(path string, _ []byte) error { return os.Truncate(path, 0) }, true},
		"zeros": {func(path string, text []byte) error {
			return os.WriteFile(path, make([]byte, len(text)), 0o600)
		}, true},
		"without its first line": {func(path string, text []byte) error {
			return os.WriteFile(path, text[bytes.IndexByte(text, '\n')+1:], 0o600)
		}, true},
		"its proof is missing": {func(path string, _ []byte) error { return os.Remove(proofPath(path)) }, false},
		"its proof is damaged": {func(path string, _ []byte) error { return os.WriteFile(proofPath(path), []byte("x"), 0o600) }, false},
		"removed with its proof": {func(path string, _ []byte) error {
			return errors.Join(os.Remove(path), os.Remove(proofPath(path)))
		}, true},
		"never made": {func(path string, _ []byte) error {
			return errors.Join(os.Remove(path), removeProofs(path))
		}, false},
		"emptied, and without proofs": {func(path string, _ []byte) error {
			return errors.Join(os.Truncate(path, 0), removeProofs(path))
		}, true},
		"without its first line, and without proofs": {func(path string, text []byte) error {
			return errors.Join(os.WriteFile(path, text[bytes.IndexByte(text, '\n')+1:], 0o600), removeProofs(path))
		}, true},
	}
	for n := range 3 {
		cut := func(text []byte) []byte {
			end := 0
			for range n + 1 {
				end += bytes.IndexByte(text[end:], '\n') + 1
			}
			return text[:end]
		}
		tests[fmt.Sprintf("cut after line %d", n+1)] = struct {
			spoil func(path string, text []byte) error
			lost  bool
		}{func(path string, text []byte) error { return os.WriteFile(path, cut(text), 0o600) }, true}
		tests[fmt.Sprintf("zeros after line %d", n+1)] = struct {
			spoil func(path string, text []byte) error
			lost  bool
		}{func(path string, text []byte) error {
			return os.WriteFile(path, append(bytes.Clone(cut(text)), make([]byte, 4096)...), 0o600)
		}, true}
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "j")
			j, _, damaged, err := Open(path)
			if err != nil || len(damaged) > 0 {
				t.Fatal(err, damaged)
			}
			for i := range 3 {
				if err := j.Put(fmt.Sprint(i), json.RawMessage("1")); err != nil {
					t.Fatal(err)
				}
			}
			if err := j.Close(); err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := tc.spoil(path, trimZeros(text)); err != nil {
				t.Fatal(err)
			}
			for i := range 4 {
				_, damaged, err := Read(path)
				if i%2 == 1 {
					if j, _, damaged, err = Open(path); err == nil {
						err = j.Close()
					}
				}
				if err != nil || (len(damaged) > 0) != tc.lost {
					t.Fatalf("look %d: damaged %v, %v; want damage: %v", i, damaged, err, tc.lost)
				}
			}
			if !tc.lost {
				return
			}
			kept, err := filepath.Glob(path + ".damaged-*")
			if err != nil || len(kept) != 1 || os.Remove(kept[0]) != nil {
				t.Fatal(err, kept)
			}
			if _, damaged, err := Read(path); err != nil || len(damaged) > 0 {
				t.Errorf("after a person has ended it: %v, %v", damaged, err)
			}
		})
	}
}

// The quick way to read a line gives the answer of the plain one, or none.
func FuzzDecodeOwn(f *testing.F) {
	for _, body := range []string{
		`{"op":"put","key":"a/b","value":{"x":[1,"}",null]}}`, `{"op":"delete","key":"a"}`, `{"op":"note","key":"a","value":null}`,
		`{"op":"put","key":"a\u003c","value":1}`, `{"op":"put","key":"ä","value":1}`, `{"op":"put","key":"a","value": 1}`, `{"op":"put","key":"a","value":1}}`,
		`{"op":"put","key":"a","value":1,"key":"b"}`, `{"op":"put","key":"a","value":}`, `{"op":"p","op":"put","key":"a"}`, `{"key":"a","op":"put"}`, `{"op":"put","key":"a`,
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		own, ok := decodeOwn(body)
		if !ok {
			return
		}
		var plain line
		if err := json.Unmarshal(body, &plain); err != nil {
			t.Fatalf("%q: %+v, but plainly %v", body, own, err)
		}
		if diff := cmp.Diff(plain, own); diff != "" {
			t.Errorf("%q:\n%s", body, diff)
		}
	})
}

// What the journal writes is read the quick way.
func TestOwnLinesAreReadQuickly(t *testing.T) {
	for _, l := range []line{{Op: opPut, Key: "uid/kubernetes.io~nfs/v", Value: json.RawMessage(`{"a":1}`)}, {Op: opDelete, Key: "k"}, {Op: opBegin, Key: "ID"}} {
		text, err := l.encode()
		if err != nil {
			t.Fatal(err)
		}
		got, ok := decodeOwn(text[sumLen : len(text)-1])
		if diff := cmp.Diff(l, got); !ok || diff != "" {
			t.Errorf("%q: %v\n%s", text, ok, diff)
		}
	}
}

// The quick way to write a line says what the plain one says, or fails as it does, in one line.
func FuzzEncodeOwn(f *testing.F) {
	for _, value := range []string{"", `{"x":[1,"}",null]}`, "null", ` {"a":1}`, "{\n}", "{\"a\":1}\r", "{", `"a<b"`, "\"\x00\"", "\"\xff\"", "\"\u2028\""} {
		for _, key := range []string{"uid/kubernetes.io~nfs/v", "", "ä", "a<b", `a"`, `a\`, "a\n"} {
			f.Add(key, []byte(value))
		}
	}
	f.Fuzz(func(t *testing.T, key string, value []byte) {
		l := line{Op: opPut, Key: key, Value: value}
		text, err := l.appendTo([]byte("before\n"))
		plain, plainErr := json.Marshal(l)
		if (err == nil) != (plainErr == nil) {
			t.Fatalf("%q %q: %v, but plainly %v", key, value, err, plainErr)
		}
		if err != nil {
			return
		}
		text, ok := bytes.CutPrefix(text, []byte("before\n"))
		if !ok || bytes.IndexByte(text, '\n') != len(text)-1 {
			t.Fatalf("%q is not one line", text)
		}
		got, err := decode(text[:len(text)-1])
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		var want line
		if err := json.Unmarshal(plain, &want); err != nil {
			t.Fatal(err)
		}
		for _, l := range []*line{&got, &want} { // which may differ in how they escape
			var value any
			if len(l.Value) > 0 && json.Unmarshal(l.Value, &value) == nil {
				l.Value, _ = json.Marshal(value)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q:\n%s", text, diff)
		}
	})
}

// Both ways to write a line, of a record's length.
func BenchmarkEncode(b *testing.B) {
	l := line{Op: opPut, Key: "uid/kubernetes.io~nfs/v", Value: json.RawMessage(`{"version":2,"record":{"podUID":"uid","pod":{"Namespace":"n","Name":"p"},"volumes":["v"],"plugin":"kubernetes.io/nfs","path":"/var/lib/podvol/pods/uid/volumes/kubernetes.io~nfs/v","source":"10.0.0.1:/nfs","inlineVolume":{"name":"v","nfs":{"server":"10.0.0.1","path":"/nfs"}}}}`)}
	for name, encode := range map[string]func() ([]byte, error){"own": l.encode, "plain": func() ([]byte, error) { return json.Marshal(l) }} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := encode(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// Both ways to read a line, of a record's length.
func BenchmarkDecode(b *testing.B) {
	body := []byte(`{"op":"put","key":"uid/kubernetes.io~nfs/v","value":{"version":2,"record":{"podUID":"uid","pod":{"Namespace":"n","Name":"p"},"volumes":["v"],"plugin":"kubernetes.io/nfs","path":"/var/lib/podvol/pods/uid/volumes/kubernetes.io~nfs/v","source":"10.0.0.1:/nfs","inlineVolume":{"name":"v","nfs":{"server":"10.0.0.1","path":"/nfs"}}}}}`)
	b.Run("own", func(b *testing.B) {
		for b.Loop() {
			if _, ok := decodeOwn(body); !ok {
				b.Fatal("it is not read")
			}
		}
	})
	b.Run("plain", func(b *testing.B) {
		for b.Loop() {
			var l line
			if err := json.Unmarshal(body, &l); err != nil {
				b.Fatal(err)
			}
		}
	})
}
