package markup

import (
	"bytes"
	"html/template"
	"strings"
	"testing"
)

type item struct {
	Name  string
	Count int
	To    Link
	Inner struct{ Deep string }
}

type data struct {
	item
	Name   string
	Shown  bool
	Items  []item
	Words  []string
	Script Own
}

const page = `<!doctype html><title>{{.Name}}</title><p id="{{.Name}}" class="a {{.Name}}"{{if .Shown}} hidden="hidden"{{end}}>{{.Name}} {{.Count}}</p>
{{range .Items}}<a href="{{.To}}">{{.Name}}{{if .Count}} {{.Count}}{{else}} {{if .Inner.Deep}}{{.Inner.Deep}}{{else}}none{{end}}{{end}}</a>{{end}}{{if .Words}}{{range .Words}}<b>{{.}}</b>{{end}}{{end}}
`

// Texts are escaped as html/template does it.
func FuzzAgainstHTMLTemplate(f *testing.F) {
	plain, err := Parse[data](page)
	if err != nil {
		f.Fatal(err)
	}
	other := template.Must(template.New("page").Parse(page))
	f.Add("name", "words", 3, true)
	f.Add(`"><script>alert(1)</script>`, `' onload='a+b' &amp; &lt; <!-- \x00`, 0, false)
	f.Add("\x00\xff\u2028\u202e{{.Name}}", "`${a}`", -1, true)
	f.Fuzz(func(t *testing.T, name, words string, count int, shown bool) {
		d := data{Name: name, Shown: shown, Words: strings.Fields(words), Items: []item{{Name: words, Count: count, To: "./?q=a%3C+b&state=c"}, {Name: name}}}
		d.Count, d.Items[1].Inner.Deep = count, words
		var want bytes.Buffer
		if err := other.Execute(&want, d); err != nil {
			t.Fatal(err)
		}
		if got := plain.Execute(d); !bytes.Equal(got, want.Bytes()) {
			t.Errorf("it writes\n%s\nhtml/template\n%s", got, want.Bytes())
		}
	})
}

func TestTheOwnIsWrittenAsItIs(t *testing.T) {
	p, err := Parse[data](`<script>{{.Script}}</script><p>{{.Name}}</p>`)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(p.Execute(data{Script: `a < "b"`, Name: "<"})), `<script>a < "b"</script><p>&lt;</p>`; got != want {
		t.Errorf("it writes %s, want %s", got, want)
	}
}

// What could be markup with other data is no page.
func TestParseRefuses(t *testing.T) {
	for source, want := range map[string]string{
		`<script>{{.Name}}</script>`:                        "cannot be in script",
		`<style>{{.To}}</style>`:                            "cannot be in style",
		`<script>a</scripts>{{.Name}}</script>`:             "cannot be in script",
		`<p>{{.Script}}</p>`:                                "cannot be between tags",
		`<p id="{{.Script}}"></p>`:                          "cannot be in the attribute id",
		`<p>{{.To}}</p>`:                                    "cannot be between tags",
		`<a href="{{.Name}}"></a>`:                          "cannot be in the attribute href",
		`<a href="./{{.Name}}"></a>`:                        "cannot be in the attribute href",
		`<p onclick="{{.Name}}"></p>`:                       "nothing can be in the attribute onclick",
		`<p style="{{.Name}}"></p>`:                         "nothing can be in the attribute style",
		`<img src="{{.To}}">`:                               "nothing can be in the attribute src",
		`<p {{.Name}}></p>`:                                 "nothing can be in a tag",
		`<p {{if .Shown}}id{{end}}="{{.Name}}"></p>`:        "ends in a tag",
		`<p id={{.Name}}></p>`:                              "'='",
		`<p id='{{.Name}}'></p>`:                            "'='",
		`<p id="a"'></p>`:                                   `'\''`,
		`<{{.Name}}>`:                                       "< is not allowed",
		`<scr{{if .Shown}}ipt{{end}}>{{.Name}}</script>`:    "<scr is not allowed",
		`<script/a>{{.Name}}</script>`:                      "is not allowed",
		`<SCRIPT>{{.Name}}</SCRIPT>`:                        "is not allowed",
		`<noscript>{{.Name}}</noscript>`:                    "is not allowed",
		`<svg><style>{{.Name}}</style></svg>`:               "is not allowed",
		`<!-- {{.Name}} -->`:                                "is not allowed",
		`{{if .Shown}}<p id="{{else}}<p class="{{end}}a">`:  "ends in the attribute id",
		`{{if .Shown}}{{else}}<script>{{end}}{{.Name}}`:     "ends in script",
		`{{range .Items}}<p id="{{end}}{{.Name}}">`:         "ends in the attribute id",
		`<p id="{{.Name}}`:                                  "the page ends",
		`<script>`:                                          "the page ends",
		`{{.Nothing}}`:                                      "no field Nothing",
		`{{.Name.Nothing}}`:                                 "has no fields",
		`{{Name}}`:                                          "is no field",
		`{{.Shown}}`:                                        "is no text",
		`{{.Items}}`:                                        "is no text",
		`{{range .Name}}{{end}}`:                            "has no values",
		`{{if .Shown}}`:                                     "has no {{end}}",
		`{{range .Items}}{{.Name}}`:                         "has no {{end}}",
		`{{range .Items}}{{else}}{{end}}`:                   "has no {{end}}",
		`{{if .Shown}}{{else}}{{else}}{{end}}`:              "has no {{end}}",
		`{{.Name}}{{end}}`:                                  "ends nothing",
		`{{.Name`:                                           "has no end",
		`{{with .Name}}{{end}}`:                             "no action",
		`<p>{{if .Shown}}<a href="{{.Name}}">{{end}}</p>`:   "href",
		`<p>{{if .Shown}}{{else}}<a b="{{.To}}">{{end}}{{`:  "in the attribute b",
		`<p>{{range .Items}}<p id="{{.Words}}">{{end}}</p>`: "no field Words",
	} {
		if _, err := Parse[data](source); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", source, err, want)
		}
	}
}
