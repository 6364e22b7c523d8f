package nodepage

// render returns the page.
func (v *view) render() []byte {
	var d document
	d.start(v)
	if v.Damaged != "" {
		d.line(`<p class="alarm" id="damaged">%s</p>`, v.Damaged)
	}
	d.refused(v.Refused, v.MoreRefused)
	d.states(v.States)
	d.waits(v.Waits)
	d.volumes(v)
	d.servers(v.Servers)
	d.drivers(v.Drivers)
	d.others(v.Others)
	d.end(v)
	return d.text.Bytes()
}

func (d *document) start(v *view) {
	d.put(`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>%s: volumes</title>
<style>`, v.Node)
	d.text.WriteString(style)
	d.line(`</style>
</head>
<body>
<a class="skip" href="#volumes">Skip to the volumes</a>
<header>
<h1><span class="what">Volumes of</span> %s</h1>
<p id="summary" role="status" aria-live="polite">%s</p>
<form role="search" action="./" method="get" autocomplete="off">
<label for="q">Find</label>
<input id="q" name="q" type="search" value="%s" placeholder="pod, volume, claim, source, error" maxlength="300">`, v.Node, v.Summary, v.Query)
	if v.State != "" {
		d.line(`<input type="hidden" name="state" value="%s">`, v.State)
	}
	d.line(`<button>Find</button>
</form>
</header>
<main id="live">`)
}

func (d *document) end(v *view) {
	d.put(`</main>
<footer>
<p id="link">State of <time id="taken" datetime="%s">%s</time> UTC. <span id="updates">Reload the page for the next one.</span></p>
</footer>
<script>`, v.Taken.Machine, v.Taken.Clock)
	d.text.WriteString(script)
	d.line(`</script>
</body>
</html>`)
}

func (d *document) refused(all []refused, more int) {
	if len(all) == 0 {
		return
	}
	d.section("refused", "Manifests that are refused")
	d.line(`<p class="quiet" id="refused-means">A good version of such a file from before stays in force. Nothing is torn down that is in no manifest until all are good.</p>`)
	d.line(`<table role="table" class="rows">`)
	d.columns("File", "Since (UTC)")
	d.line(`<tbody role="rowgroup">`)
	for _, r := range all {
		d.put(`<tr role="row" class="volume" id="refused-%s"><th role="rowheader" scope="row">%s</th>`, r.Path, r.Path)
		d.since(r.Since)
		d.line(`</tr>`)
		d.line(`<tr role="row" class="why bad" id="why-refused-%s"><td role="cell" colspan="2"><p class="error">%s</p></td></tr>`, r.Path, r.Reason)
	}
	d.line(`</tbody>
</table>`)
	if more > 0 {
		d.line(`<p class="quiet" id="refused-more">and %s more</p>`, more)
	}
	d.line(`</section>`)
}

func (d *document) states(all []choice) {
	d.line(`<nav id="states" aria-label="States">
<ul>`)
	for _, c := range all {
		d.put(`<li id="state-%s"><a id="to-%s" class="%s" href="%s"`, c.State, c.State, c.Class, c.Address)
		if c.Chosen {
			d.put(` aria-current="true"`)
		}
		d.line(`><b>%s</b> <span>%s</span></a></li>`, c.Count, c.Name)
	}
	d.line(`</ul>
</nav>`)
}

func (d *document) waits(all []wait) {
	if len(all) == 0 {
		return
	}
	d.section("waits", "What is waited for")
	d.line(`<table role="table">`)
	d.columns("For", "Volumes", "Pods")
	d.line(`<tbody role="rowgroup">`)
	for _, w := range all {
		d.put(`<tr role="row" id="wait-%s"><th role="rowheader" scope="row"><a id="to-wait-%s" href="%s">%s</a></th>`, w.For, w.For, w.Address, w.For)
		d.line(`<td role="cell" class="n">%s</td><td role="cell" class="n">%s</td></tr>`, w.Volumes, w.Pods)
	}
	d.line(`</tbody>
</table>
</section>`)
}

func (d *document) servers(all []server) {
	if len(all) == 0 {
		return
	}
	d.section("servers", "Servers")
	d.line(`<table role="table" class="rows">`)
	d.columns("Server", "State", "Since (UTC)", "Volumes")
	d.line(`<tbody role="rowgroup">`)
	for _, s := range all {
		d.put(`<tr role="row" class="volume" id="%s"><th role="rowheader" scope="row"><a id="to-%s" href="%s">%s</a></th>`, s.ID, s.ID, s.Address, s.Name)
		d.state(s.Class, s.State)
		d.since(s.Since)
		d.line(`<td role="cell">%s</td></tr>`, s.Volumes)
		if !s.Explained {
			continue
		}
		d.startWhy(s.Class, s.ID)
		d.paragraph("error", s.Error)
		if s.Retry != "" {
			d.put(`<p class="quiet">next try at %s, or by the next mount from it</p>`, s.Retry)
		}
		d.endWhy()
	}
	d.line(`</tbody>
</table>
</section>`)
}

func (d *document) drivers(all []driver) {
	if len(all) == 0 {
		return
	}
	d.section("drivers", "CSI drivers")
	d.line(`<table role="table" class="rows">`)
	d.columns("Driver", "State", "Failing since (UTC)", "Calls under way")
	d.line(`<tbody role="rowgroup">`)
	for _, r := range all {
		d.put(`<tr role="row" class="volume" id="%s"><th role="rowheader" scope="row">%s <span class="quiet">%s</span></th>`, r.ID, r.Name, r.Version)
		d.state(r.Class, r.State)
		d.since(r.Since)
		d.put(`<td role="cell">`)
		for _, call := range r.Calls {
			d.put(`<p>%s</p>`, call)
		}
		if len(r.Calls) == 0 {
			d.put(`no calls`)
		}
		d.line(`</td></tr>`)
		if r.Error != "" {
			d.startWhy(r.Class, r.ID)
			d.paragraph("error", r.Error)
			d.endWhy()
		}
	}
	d.line(`</tbody>
</table>
</section>`)
}

func (d *document) others(h history) {
	if len(h.Events) == 0 {
		return
	}
	d.section("others", "What happened to others")
	d.details(h)
	d.line(`
</section>`)
}
