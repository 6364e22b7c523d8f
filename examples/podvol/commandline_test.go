package main

import "testing"

func TestShellJoin(t *testing.T) {
	got := shellJoin([]string{"podvol", "-f", "my pod.yaml", "it's", "", "a=b/c.d-e_f:g", "it's\na\\ü"})
	if want := `podvol -f 'my pod.yaml' 'it'\''s' '' a=b/c.d-e_f:g $'it\'s\012a\\\303\274'`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestProgramName(t *testing.T) {
	for arg0, want := range map[string]string{
		"/tmp/go-build123/b001/exe/podvol": "go run -C examples ./podvol",
		"/usr/local/bin/podvol":            "/usr/local/bin/podvol",
		"/opt/my tools/podvol":             "'/opt/my tools/podvol'",
	} {
		if got := shellJoin(programName(arg0)); got != want {
			t.Errorf("%s: %s, want %s", arg0, got, want)
		}
	}
}
