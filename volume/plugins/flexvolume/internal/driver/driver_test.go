package driver_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/rootdir"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/flexvolume/internal/driver"
)

const name = "example.com/test"

// drivers returns a directory of drivers with one, a shell script.
func drivers(t *testing.T, script string) *driver.Drivers {
	t.Helper()
	d := &driver.Drivers{Dir: t.TempDir(), Timeout: time.Minute, Run: driver.Run}
	install(t, d.Dir, script)
	return d
}

func install(t *testing.T, dir, script string) {
	t.Helper()
	path := driver.Program(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(path+".new", []byte("#!/bin/sh\n"+script), 0o755), os.Rename(path+".new", path)); err != nil {
		t.Fatal(err)
	}
}

func mustOpen(t *testing.T, d *driver.Drivers) *driver.Driver {
	t.Helper()
	found, err := d.Open(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// Every answer that a driver may give has one meaning, and all others are refused. An error never
// has a line break, a control character or a secret.
func TestAnswers(t *testing.T) {
	const secret = "c2VjcmV0"
	long := strings.Repeat("x", 70000)
	for _, test := range []struct {
		stdout, stderr string
		exit           int
		cause          error  // nil: success
		says           string // in the error
	}{
		{stdout: `{"status":"Success"}`},
		{stdout: "\n {\"status\": \"Success\", \"other\": [1, {\"a\": null}]}\n\n", stderr: "a warning"},
		{stdout: `{"Status":"Success","capabilities":null}`},
		{stdout: `{"status":"Not supported"}`, exit: 1, cause: driver.ErrNotSupported},
		{stdout: `{"status":"Not supported"}`, cause: driver.ErrNotSupported},
		{stdout: `{"status":"Failure","message":"no such share"}`, exit: 1, cause: driver.ErrFailed, says: "failed to try: no such share"},
		{stdout: `{"status":"Failure"}`, stderr: "mount: no\nsuch share", cause: driver.ErrFailed, says: "failed to try: mount: no such share"},
		{stdout: `{"status":"Failure"}`, cause: driver.ErrFailed, says: "does not say why"},
		{stdout: `{"status":"Failure","message":"a\nb\u001b[31m` + secret + `\u0000"}`, cause: driver.ErrFailed, says: "a b?[31m<masked>?"},
		{stdout: `{"status":"Failure","message":"` + long + `"}`, cause: driver.ErrFailed, says: "xxx…"},
		{stdout: `{"status":"Success"}`, exit: 3, cause: driver.ErrFailed, says: "exit status 3"},
		{stdout: `{"status":"success"}`, cause: driver.ErrFailed, says: "none of Success"},
		{stdout: `{"status":"Success\n"}`, cause: driver.ErrFailed, says: "none of Success"},
		{stdout: `{}`, cause: driver.ErrFailed, says: "none of Success"},
		{stdout: ``, stderr: "line 3: jq: not found", exit: 127, cause: driver.ErrFailed, says: "jq: not found"},
		{stdout: `null`, cause: driver.ErrFailed, says: "no JSON object"},
		{stdout: `"Success"`, cause: driver.ErrFailed, says: "no JSON object"},
		{stdout: `[{"status":"Success"}]`, cause: driver.ErrFailed, says: "no JSON object"},
		{stdout: `{"status":"Success"`, cause: driver.ErrFailed, says: "no JSON object"},
		{stdout: `{"status":"Success"}{"status":"Failure"}`, cause: driver.ErrFailed, says: "something comes after"},
		{stdout: `{"status":"Success"} done`, cause: driver.ErrFailed, says: "something comes after"},
		{stdout: `mounting` + "\n" + `{"status":"Success"}`, cause: driver.ErrFailed, says: "no JSON object: mounting"},
		{stdout: `{"status":"Success","attached":"yes"}`, cause: driver.ErrFailed, says: `field "Attached" is a string`},
		{stdout: `{"status":["Success"]}`, cause: driver.ErrFailed, says: `field "Status" is a array`},
		{stdout: `{"status":"Success","device":"/dev/a\nb"}`, cause: driver.ErrFailed, says: "its device is no path"},
		{stdout: `{"status":"Success","device":"--force"}`, cause: driver.ErrFailed, says: "its device is no path"},
		{stdout: `{"status":"Success","device":"` + strings.Repeat("d", 2000) + `"}`, cause: driver.ErrFailed, says: "its device is no path"},
		{stdout: `{"status":"Success","volumeNewSize":-1}`, cause: driver.ErrFailed, says: "negative"},
		{stdout: `{"status":"Success","volumeNewSize":1e300}`, cause: driver.ErrFailed, says: "VolumeNewSize"},
		{stdout: `{"status":"Success","message":"` + long + `"}`, cause: driver.ErrFailed, says: "longer than 65536"},
		{stdout: secret, stderr: "plain " + secret, cause: driver.ErrFailed, says: "<masked> plain <masked>"},
	} {
		given := driver.Output{Stdout: []byte(test.stdout), Stderr: []byte(test.stderr)}
		d := drivers(t, "")
		d.Run = func(ctx context.Context, _ string, args []string) (driver.Output, error) {
			if args[0] == "init" {
				return driver.Output{Stdout: []byte(`{"status":"Success"}`)}, nil
			}
			if test.exit != 0 {
				_, err := driver.Run(ctx, "/bin/sh", []string{"-c", "exit " + strconv.Itoa(test.exit)})
				return given, err
			}
			return given, nil
		}
		_, err := mustOpen(t, d).Call(t.Context(), driver.Call{Verb: "try", Secrets: []string{secret, ""}})
		if test.cause == nil {
			if err != nil {
				t.Errorf("%.100q: %v", test.stdout, err)
			}
			continue
		}
		if !errors.Is(err, test.cause) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%.100q: %.600v; want %q", test.stdout, err, test.says)
			continue
		}
		if text := err.Error(); strings.Contains(text, secret) || strings.ContainsFunc(text, unicode.IsControl) || len(text) > 1000 {
			t.Errorf("%.100q is shown as %.2000q", test.stdout, text)
		}
		if not := errors.Is(test.cause, driver.ErrNotSupported); volume.IsUncertain(err) == not {
			t.Errorf("%.100q: uncertain: %v", test.stdout, !not)
		}
	}
}

// A secret is masked in each form in which a driver can have it: without its last newline, in one
// line, line by line, and as in the argument. A secret that begins another does not show the rest.
func TestSecretsInAnyForm(t *testing.T) {
	secrets := []string{"s3cret\n", "  padded\t pass  phrase ", "-----BEGIN-----\r\nMIIabc\r\nMIIdef=\r\n", `quo"ted\`, "abc", "abcdef", "abcdefghi", ""}
	d := drivers(t, "")
	for _, test := range []struct{ message, want string }{
		{"password=s3cret: denied", "password=<masked>: denied"},
		{"  padded\t pass  phrase ", "<masked>"},
		{"-----BEGIN-----\r\nMIIabc\r\nMIIdef=\r\n", "<masked>"},
		{"line 2: MIIdef=", "line 2: <masked>"},
		{`in {"password":"quo\"ted\\"} and quo"ted\`, `in {"password":"<masked>"} and <masked>`},
		{`in {"password":"s3cret\n"}`, `in {"password":"<masked>"}`},
		{"abcdefghi, abcdef, abc, ab", "<masked>, <masked>, <masked>, ab"},
	} {
		stdout, err := json.Marshal(map[string]string{"status": "Failure", "message": test.message})
		if err != nil {
			t.Fatal(err)
		}
		d.Run = func(_ context.Context, _ string, args []string) (driver.Output, error) {
			if args[0] == "init" {
				return driver.Output{Stdout: []byte(`{"status":"Success"}`)}, nil
			}
			return driver.Output{Stdout: stdout}, nil
		}
		_, err = mustOpen(t, d).Call(t.Context(), driver.Call{Verb: "try", Secrets: secrets})
		if err == nil || !strings.HasSuffix(err.Error(), "failed to try: "+test.want) {
			t.Errorf("%q: %v; want %q", test.message, err, test.want)
		}
	}
}

// Whatever a driver answers, what is taken of it can be shown and handed on, and reads the same
// once it is written again.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		`{"status":"Success"}`, `{"status":"Failure","message":"m"}`, `{"status":"Not supported"}`, `{"status":"Success","device":"/dev/x","attached":true,"volumeNewSize":5}`,
		`{"status":"Success","capabilities":{"attach":false,"fsGroup":null}}`, `{"status":"Success","Capabilities":[]}`, `{`, ``, `null`, `{"status":"Success"}x`, "\xff", `{"status":"Success","message":"\ud800"}`,
		`{"status":"Success","status":"Failure"}`, strings.Repeat(`{"a":`, 100),
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, output []byte) {
		a, err := driver.Parse(output)
		if err != nil {
			if strings.ContainsFunc(err.Error(), unicode.IsControl) {
				t.Errorf("%q is refused by %q", output, err)
			}
			return
		}
		if strings.ContainsFunc(a.Message+a.Device, unicode.IsControl) || strings.HasPrefix(a.Device, "-") || a.NewSize < 0 {
			t.Errorf("%q is taken for %+v", output, a)
		}
		again, err := json.Marshal(map[string]any{"status": "Success", "message": a.Message, "device": a.Device, "attached": a.Attached, "volumeNewSize": a.NewSize, "capabilities": a.Capabilities})
		if err != nil {
			t.Fatal(err)
		}
		if len(again) > 60000 {
			return
		}
		if same, err := driver.Parse(again); err != nil || same != a {
			t.Errorf("%q reads as %+v, and as %+v once it is written again (%v)", output, a, same, err)
		}
	})
}

func FuzzName(f *testing.F) {
	for _, seed := range []string{"nfs", "example.com/nfs", "", ".", "..", "../nfs", "a/b/c", "a~b", "a/..", "/a", "a/", "-a", "a\nb", "a\x00", strings.Repeat("a", 64), "k8s/ÿ"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, given string) {
		if driver.CheckName(given) != nil {
			return
		}
		dir := driver.DirName(given)
		if back, ok := driver.NameOf(dir); !ok || back != given {
			t.Errorf("%q is in %q, which is of %q, %v", given, dir, back, ok)
		}
		rest := strings.TrimPrefix(driver.Program("/drivers", given), "/drivers/"+dir+"/")
		if filepath.Base(dir) != dir || rest == "" || strings.Contains(rest, "/") || strings.HasPrefix(rest, ".") || len(dir) > 255 {
			t.Errorf("%q leads to %s", given, driver.Program("/drivers", given))
		}
	})
}

func TestCapabilities(t *testing.T) {
	usual := driver.DefaultCapabilities()
	for answer, want := range map[string]driver.Capabilities{
		`{"status":"Success"}`:                   usual,
		`{"status":"Success","capabilities":{}}`: usual,
		`{"status":"Not supported"}`:             usual,
		`{"status":"Success","capabilities":{"attach":false,"selinuxRelabel":false,"supportsMetrics":true,"fsGroup":false,"requiresFSResize":false}}`: {SupportsMetrics: true},
	} {
		if got := mustOpen(t, drivers(t, "echo '"+answer+"'")); got.Capabilities != want {
			t.Errorf("%s: %+v", answer, got.Capabilities)
		}
	}
}

// A driver is asked once, and again when it is another program. What it does not support is not
// called again.
func TestAReplacedDriverIsAskedAgain(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	script := func(attach string) string {
		return fmt.Sprintf(`echo $1 >>%s; test $1 = init && echo '{"status":"Success","capabilities":{"attach":%s}}' || echo '{"status":"Not supported"}'`, log, attach)
	}
	d := drivers(t, script("false"))
	try := func() *driver.Driver {
		found := mustOpen(t, d)
		if _, err := found.Call(t.Context(), driver.Call{Verb: "try"}); !errors.Is(err, driver.ErrNotSupported) {
			t.Errorf("try: %v", err)
		}
		return found
	}
	try()
	if try().Capabilities.Attach {
		t.Error("the driver attaches")
	}
	install(t, d.Dir, script("true"))
	if !try().Capabilities.Attach {
		t.Error("the new driver does not attach")
	}
	calls, err := os.ReadFile(log)
	if got := strings.Fields(string(calls)); err != nil || strings.Join(got, " ") != "init try init try" {
		t.Errorf("calls: %q, %v", got, err)
	}
}

func TestWhoMayChangeADriver(t *testing.T) {
	other := 12345
	for what, change := range map[string]func(dir, program string) error{
		"program for all to write":   func(_, program string) error { return os.Chmod(program, 0o757) },
		"program for a group":        func(_, program string) error { return os.Chmod(program, 0o775) },
		"directory for all to write": func(dir, program string) error { return os.Chmod(filepath.Dir(program), 0o777) },
		"all drivers' directory":     func(dir, program string) error { return os.Chmod(dir, 0o777) },
		"another's program": func(dir, program string) error {
			if os.Getuid() != 0 {
				return os.Chmod(program, 0o757)
			}
			return os.Chown(program, other, -1)
		},
		"link as program": func(dir, program string) error {
			return errors.Join(os.Rename(program, program+"2"), os.Symlink(program+"2", program))
		},
		"link as directory": func(dir, program string) error {
			return errors.Join(os.Rename(filepath.Dir(program), dir+"/other"), os.Symlink("other", filepath.Dir(program)))
		},
	} {
		d := drivers(t, `touch "$0.ran"; echo '{"status":"Success"}'`)
		program := driver.Program(d.Dir, name)
		if err := change(d.Dir, program); err != nil {
			t.Fatal(err)
		}
		_, err := d.Open(t.Context(), name)
		if _, ok := errors.AsType[*rootdir.Error](err); !ok || !errors.Is(err, driver.ErrNotTrusted) || volume.IsUncertain(err) {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := os.Stat(program + ".ran"); err == nil {
			t.Errorf("%s: it ran", what)
		}
	}
	d := drivers(t, "")
	if err := os.Chmod(driver.Program(d.Dir, name), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Open(t.Context(), name); !errors.Is(err, unix.EACCES) {
		t.Errorf("a program that is none: %v", err)
	}
	d.Dir = filepath.Join(d.Dir, "none")
	if _, err := d.Open(t.Context(), name); !errors.Is(err, driver.ErrNotInstalled) || !strings.Contains(err.Error(), "driver example.com/test is not installed in "+d.Dir) {
		t.Errorf("no directory: %v", err)
	}
	d.Dir = "drivers"
	if _, err := d.Open(t.Context(), name); !errors.Is(err, driver.ErrNotInstalled) || !strings.Contains(err.Error(), "absolute path") {
		t.Errorf("a relative directory: %v", err)
	}
}
