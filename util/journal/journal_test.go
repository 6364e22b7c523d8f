package journal_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/podvol/podvol/util/journal"
)

func open(t testing.TB, path string) (*journal.Journal, []journal.Entry) {
	t.Helper()
	j, held, damaged, err := journal.Open(path)
	if err != nil || len(damaged) > 0 {
		t.Fatalf("Open: %v, damaged %v", err, damaged)
	}
	return j, held
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func raw(format string, args ...any) json.RawMessage {
	return json.RawMessage(fmt.Sprintf(format, args...))
}

func TestReopen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	j, held := open(t, path)
	if len(held) != 0 {
		t.Fatalf("a new journal holds %v", held)
	}
	must(t, j.Put("a", raw(`{"n":1}`)))
	must(t, j.Put("b", raw(`2`)))
	must(t, j.Note("a", raw(`"set up"`)))
	must(t, j.Put("c", raw(`3`)))
	must(t, j.Note("c", raw(`"stale"`)))
	must(t, j.Put("c", raw(`4`)))
	must(t, j.Delete("b"))
	must(t, j.Delete("never there"))
	must(t, j.Note("b", raw(`"too late"`)))
	want := []journal.Entry{{Key: "a", Value: raw(`{"n":1}`), Note: raw(`"set up"`)}, {Key: "c", Value: raw(`4`)}}
	beside, damaged, err := journal.Read(path)
	if diff := cmp.Diff(want, beside); diff != "" || err != nil || len(damaged) > 0 {
		t.Errorf("Read beside the owner: %v, %v\n%s", err, damaged, diff)
	}
	must(t, j.Close())
	must(t, j.Close())
	if err := j.Put("d", raw(`5`)); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Put after Close: %v", err)
	}
	j, held = open(t, path)
	defer j.Close()
	if diff := cmp.Diff(want, held); diff != "" {
		t.Errorf("after reopening:\n%s", diff)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func TestForgetSeveral(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	j, _ := open(t, path)
	for _, key := range []string{"a", "b", "c"} {
		must(t, j.Put(key, raw(`1`)))
	}
	must(t, j.Forget())
	must(t, j.Forget("a", "missing", "c"))
	must(t, j.Close())
	j, held := open(t, path)
	defer j.Close()
	if diff := cmp.Diff([]journal.Entry{{Key: "b", Value: raw(`1`)}}, held); diff != "" {
		t.Errorf("after reopening:\n%s", diff)
	}
}

func TestReadOfNothing(t *testing.T) {
	held, damaged, err := journal.Read(filepath.Join(t.TempDir(), "missing"))
	if len(held) != 0 || len(damaged) != 0 || err != nil {
		t.Errorf("%v, %v, %v", held, damaged, err)
	}
	if _, _, _, err := journal.Open(filepath.Join(t.TempDir(), "no", "directory")); err == nil {
		t.Error("opened in a directory that does not exist")
	}
	dir := t.TempDir()
	if _, _, err := journal.Read(dir); err == nil {
		t.Error("read a directory")
	}
}

func TestConcurrentChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	j, _ := open(t, path)
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			for n := range 20 {
				if err := j.Put(fmt.Sprint(i), raw("%d", n)); err != nil {
					t.Error(err)
				}
				if err := j.Note(fmt.Sprint(i), raw("%d", n)); err != nil {
					t.Error(err)
				}
			}
			if i%2 == 0 {
				if err := j.Delete(fmt.Sprint(i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	must(t, j.Close())
	j, held := open(t, path)
	defer j.Close()
	if len(held) != 25 {
		t.Errorf("%d entries, want 25", len(held))
	}
	for _, e := range held {
		if string(e.Value) != "19" || string(e.Note) != "19" {
			t.Errorf("%+v", e)
		}
	}
}

// Whatever a crash leaves of the file, every change that had returned before
// the last whole line is found.
func TestTornTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	j, _ := open(t, path)
	must(t, j.Put("a", raw(`"first"`)))
	must(t, j.Close())
	text, err := os.ReadFile(path)
	must(t, err)
	first := len(strings.TrimRight(string(text), "\x00"))
	proof, err := os.ReadFile(path + ".made")
	must(t, err)
	j, _ = open(t, path)
	must(t, j.Put("b", raw(`"second"`)))
	must(t, j.Close())
	text, err = os.ReadFile(path)
	must(t, err)
	whole := len(strings.TrimRight(string(text), "\x00"))
	for cut := range whole + 1 {
		if cut%11 != 0 && cut < whole-2 && (cut < first-2 || cut > first+2) {
			continue // each cut costs several syncs
		}
		torn := append(slices.Clone(text[:cut]), make([]byte, len(text)-cut)...)
		for name, content := range map[string][]byte{"zeros": torn, "end": text[:cut]} {
			must(t, os.WriteFile(path, content, 0o600))
			must(t, os.WriteFile(path+".made", proof, 0o600))
			if cut < first { // no crash leaves that
				_, damaged, err := journal.Read(path)
				must(t, err)
				if len(damaged) != 1 {
					t.Errorf("cut at %d, then %s: damaged %v", cut, name, damaged)
				}
				continue
			}
			j, held := open(t, path)
			var keys []string
			for _, e := range held {
				keys = append(keys, e.Key)
			}
			want := []string{"a"}
			if cut >= whole {
				want = []string{"a", "b"}
			}
			if !slices.Equal(keys, want) {
				t.Fatalf("cut at %d, then %s: held %v, want %v", cut, name, keys, want)
			}
			must(t, j.Put("c", raw(`"third"`)))
			must(t, j.Close())
			if again, _, err := journal.Read(path); err != nil || len(again) != len(want)+1 {
				t.Fatalf("cut at %d, then %s: %v, %v after one more Put", cut, name, again, err)
			}
		}
	}
}

// Whatever is wrong with a line that was written to its end, it is reported,
// the file is kept, and the other lines are read.
func TestDamagedLineIsReportedAndKept(t *testing.T) {
	tests := map[string]struct {
		spoil func(text string) string
		keys  []string
	}{
		"in the middle": {func(s string) string { return strings.Replace(s, "second", "secund", 1) }, []string{"a", "c"}},
		"the last":      {func(s string) string { return strings.Replace(s, "third", "thurd", 1) }, []string{"a", "b"}},
		"a lost block":  {func(s string) string { return strings.Replace(s, "econd", "\x00\x00\x00\x00\x00", 1) }, []string{"a", "c"}},
		"no line":       {func(s string) string { return "hello\n" + s }, []string{"a", "b", "c"}},
		"written by a newer version": {func(s string) string {
			body := `{"op":"rename","key":"a"}`
			return s + fmt.Sprintf("%08x %s\n", crc32.Checksum([]byte(body), crc32.MakeTable(crc32.Castagnoli)), body)
		}, []string{"a", "b", "c"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "j")
			j, _ := open(t, path)
			must(t, j.Put("a", raw(`"first"`)))
			must(t, j.Put("b", raw(`"second"`)))
			must(t, j.Put("c", raw(`"third"`)))
			must(t, j.Close())
			text, err := os.ReadFile(path)
			must(t, err)
			spoiled := tc.spoil(strings.TrimRight(string(text), "\x00"))
			must(t, os.WriteFile(path, []byte(spoiled+strings.Repeat("\x00", 100)), 0o600))

			j, held, damaged, err := journal.Open(path)
			must(t, err)
			var keys []string
			for _, e := range held {
				keys = append(keys, e.Key)
			}
			if !slices.Equal(keys, tc.keys) {
				t.Errorf("held %v, want %v", keys, tc.keys)
			}
			var d *journal.DamagedError
			if len(damaged) == 0 || !errors.As(damaged[0], &d) {
				t.Fatalf("damaged = %v", damaged)
			}
			kept, err := os.ReadFile(d.Kept)
			if err != nil || string(kept) != spoiled || !strings.Contains(d.Error(), d.Kept) {
				t.Errorf("the damaged file is not kept: %v", err)
			}
			must(t, j.Close())
			for range 2 { // whoever looks, until a person has taken the copy away
				_, again, err := journal.Read(path)
				must(t, err)
				if diff := cmp.Diff(fmt.Sprint(damaged), fmt.Sprint(again)); diff != "" {
					t.Errorf("when read again:\n%s", diff)
				}
				j, _, again, err := journal.Open(path)
				must(t, err)
				must(t, j.Close())
				if diff := cmp.Diff(fmt.Sprint(damaged), fmt.Sprint(again)); diff != "" {
					t.Errorf("when opened again:\n%s", diff)
				}
			}
			must(t, os.Rename(d.Kept, filepath.Join(t.TempDir(), "elsewhere")))
			j, _ = open(t, path)
			must(t, j.Close())
		})
	}
}

func TestCompaction(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	j, _ := open(t, path)
	value := raw(`"%s"`, strings.Repeat("x", 8000))
	must(t, j.Put("kept", raw(`"from before"`)))
	for range 600 { // 4.8 MB of changes to one key
		must(t, j.Put("k", value))
	}
	must(t, j.Note("k", raw(`"last"`)))
	info, err := os.Stat(path)
	must(t, err)
	if info.Size() > 3<<20 {
		t.Errorf("the file has grown to %d bytes", info.Size())
	}
	must(t, j.Close())
	j, held := open(t, path)
	defer j.Close()
	if len(held) != 2 || held[0].Key != "kept" || string(held[1].Value) != string(value) || string(held[1].Note) != `"last"` {
		t.Errorf("%d entries after compaction", len(held))
	}
}

func TestInvalidValueIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	j, _ := open(t, path)
	defer j.Close()
	if err := j.Put("a", raw(`{"half":`)); err == nil || !strings.Contains(err.Error(), "a") {
		t.Errorf("err = %v", err)
	}
	must(t, j.Put("new\nline \x00 and zero", raw(`"a\nb"`)))
	held, _, err := journal.Read(path)
	if err != nil || len(held) != 1 || held[0].Key != "new\nline \x00 and zero" {
		t.Errorf("%q, %v", held, err)
	}
}

// The journal gives the same answers as a map, over any changes and reopenings.
func TestModel(t *testing.T) {
	dir := t.TempDir()
	runs := 0
	rapid.Check(t, func(t *rapid.T) {
		runs++
		path := filepath.Join(dir, fmt.Sprint(runs))
		j, _, _, err := journal.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { j.Close() }()
		model := map[string][2]string{}
		keys := rapid.SampledFrom([]string{"a", "b", "c"})
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				k, v := keys.Draw(t, "key"), rapid.IntRange(0, 9).Draw(t, "value")
				if err := j.Put(k, raw("%d", v)); err != nil {
					t.Fatal(err)
				}
				model[k] = [2]string{fmt.Sprint(v)}
			},
			"note": func(t *rapid.T) {
				k, v := keys.Draw(t, "key"), rapid.IntRange(0, 9).Draw(t, "note")
				if err := j.Note(k, raw("%d", v)); err != nil {
					t.Fatal(err)
				}
				if m, ok := model[k]; ok {
					model[k] = [2]string{m[0], fmt.Sprint(v)}
				}
			},
			"delete": func(t *rapid.T) {
				k := keys.Draw(t, "key")
				if err := j.Delete(k); err != nil {
					t.Fatal(err)
				}
				delete(model, k)
			},
			"reopen": func(t *rapid.T) {
				if err := j.Close(); err != nil {
					t.Fatal(err)
				}
				var damaged []error
				if j, _, damaged, err = journal.Open(path); err != nil || len(damaged) > 0 {
					t.Fatal(err, damaged)
				}
			},
			"": func(t *rapid.T) {
				held, damaged, err := journal.Read(path)
				got := map[string][2]string{}
				for _, e := range held {
					got[e.Key] = [2]string{string(e.Value), string(e.Note)}
				}
				if diff := cmp.Diff(model, got); diff != "" || err != nil || len(damaged) > 0 {
					t.Fatalf("%v %v\n%s", err, damaged, diff)
				}
			},
		})
	})
}

func FuzzRead(f *testing.F) {
	dir := f.TempDir()
	path := filepath.Join(dir, "seed")
	j, _ := open(f, path)
	must(f, j.Put("a", raw(`{"n":1}`)))
	must(f, j.Note("a", raw(`1`)))
	must(f, j.Delete("a"))
	must(f, j.Close())
	seed, err := os.ReadFile(path)
	must(f, err)
	f.Add([]byte(strings.TrimRight(string(seed), "\x00")))
	f.Add([]byte("00000000 {}\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		path := filepath.Join(t.TempDir(), "j")
		must(t, os.WriteFile(path, text, 0o600))
		before, was, err := journal.Read(path)
		must(t, err)
		j, held, _, err := journal.Open(path)
		must(t, err)
		defer j.Close()
		if diff := cmp.Diff(before, held); diff != "" {
			t.Errorf("Read and Open differ:\n%s", diff)
		}
		again, damaged, err := journal.Read(path)
		if diff := cmp.Diff(held, again); diff != "" || err != nil || (len(damaged) > 0) != (len(was) > 0) {
			t.Errorf("after compaction: %v %v\n%s", err, damaged, diff)
		}
	})
}

func BenchmarkPut(b *testing.B) {
	j, _ := open(b, filepath.Join(b.TempDir(), "j"))
	defer j.Close()
	value := raw(`"%s"`, strings.Repeat("x", 700))
	for i := 0; b.Loop(); i++ {
		must(b, j.Put(fmt.Sprint(i%1000), value))
	}
}

func BenchmarkPutParallel(b *testing.B) {
	j, _ := open(b, filepath.Join(b.TempDir(), "j"))
	defer j.Close()
	value := raw(`"%s"`, strings.Repeat("x", 700))
	b.SetParallelism(100)
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			must(b, j.Put(fmt.Sprint(i%1000), value))
		}
	})
}
