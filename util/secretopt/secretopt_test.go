package secretopt

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
)

func TestOption(t *testing.T) {
	for option, want := range map[string]string{
		"":                                  "",
		"ro":                                "ro",
		"vers=4.1":                          "vers=4.1",
		"password=hunter2":                  "password=<masked>",
		"PASSWORD=hunter2":                  "PASSWORD=<masked>",
		"password=a,b=c":                    "password=<masked>",
		"ro,pass=hunter2,rw":                "ro,pass=<masked>",
		"password2=hunter2":                 "password2=<masked>",
		"secret=AQ==":                       "secret=<masked>",
		"secret_key=x":                      "secret_key=<masked>",
		"account-key=x":                     "account-key=<masked>",
		"-o password=hunter2":               "-o password=<masked>",
		"--password=hunter2":                "--password=<masked>",
		"pass\nword=hunter2":                "pass\nword=<masked>",
		"password =hunter2":                 "password =<masked>",
		"\x1bpassword=hunter2":              "\x1bpassword=<masked>",
		"sec=sys,password=hunter2":          "sec=sys,password=<masked>",
		"user=bob%hunter2":                  "user=bob%<masked>",
		"username=dom/bob%hunter2":          "username=dom/bob%<masked>",
		"user=bob:hunter2":                  "user=bob:<masked>",
		"user=bob":                          "user=bob",
		"username=bob":                      "username=bob",
		"credentials=/etc/smb":              "credentials=/etc/smb",
		"secretfile=/etc/ceph":              "secretfile=/etc/ceph",
		"passwd_file=/etc/s3":               "passwd_file=/etc/s3",
		"password=":                         "password=",
		"password":                          "password",
		"password=<masked>":                 "password=<masked>",
		"addr=fe80::1,mountaddr=10.0.0.1:1": "addr=fe80::1,mountaddr=10.0.0.1:1",
	} {
		if got := Option(option); got != want || Option(got) != got || IsSecret(option) != (got != option) {
			t.Errorf("%q: %q, want %q", option, got, want)
		}
	}
	given := []string{"ro", "pass=hunter2"}
	if got := Options(given); !slices.Equal(got, []string{"ro", "pass=<masked>"}) || given[1] != "pass=hunter2" || Options(nil) != nil {
		t.Errorf("%q of %q", got, given)
	}
}

func TestParameters(t *testing.T) {
	given := map[string]string{
		"server": "10.0.0.1", "password": "hunter2", "options": "ro,pass=hunter2", "empty": "", "brace": "{hunter2",
		"last-applied": `{"spec":{"size":12345678901234567890,"mountOptions":["ro","password=hunter2"],"flexVolume":{"options":{"passwd":"hunter2"}}}}`,
		"other":        `{"a":"b"}`,
	}
	before := maps.Clone(given)
	got := Parameters(given)
	if !maps.Equal(given, before) || Parameters(nil) != nil {
		t.Errorf("given became %v", given)
	}
	for name, text := range got {
		if strings.Contains(text, "hunter2") {
			t.Errorf("%s: %s", name, text)
		}
	}
	if got["server"] != "10.0.0.1" || got["other"] != `{"a":"b"}` || !strings.Contains(got["last-applied"], "12345678901234567890") || got["options"] != "ro,pass=<masked>" {
		t.Errorf("%v", got)
	}
}

func TestDocument(t *testing.T) {
	var document any
	text := `{"items":[{"spec":{"mountOptions":["ro","password=hunter2"],"csi":{"volumeAttributes":{"Token":"hunter2","share":"x"}}}}],"n":1}`
	if err := json.Unmarshal([]byte(text), &document); err != nil {
		t.Fatal(err)
	}
	if !Document(document) || Document(document) {
		t.Error("not masked once")
	}
	masked, err := json.Marshal(document)
	if err != nil || strings.Contains(string(masked), "hunter2") || !strings.Contains(string(masked), `"share":"x"`) {
		t.Errorf("%s, %v", masked, err)
	}
}

func TestSource(t *testing.T) {
	for source, want := range map[string]string{
		"nas1:/export": "nas1:/export", "https://u:p@host/dav": "https://" + Masked + "@host/dav", "//host/share": "//host/share", "x,password=a,b": "x,password=" + Masked,
	} {
		if got := Source(source); got != want {
			t.Errorf("%q is %q, want %q", source, got, want)
		}
	}
}
