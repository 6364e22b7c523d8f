package nodepage

func (d *document) volumes(v *view) {
	d.line(`<section id="volumes" aria-labelledby="h-volumes" tabindex="-1">
<h2 id="h-volumes">Volumes</h2>`)
	d.shown(v)
	if len(v.Pods) > 0 {
		d.line(`<table role="table" id="rows" class="rows">`)
		d.columns("Volume", "State", "Since (UTC)", "From")
		for _, p := range v.Pods {
			d.pod(p)
		}
		d.line(`</table>`)
		d.turn(v.Before, v.After)
	}
	d.line(`</section>`)
}

// shown says which of the volumes are shown.
func (d *document) shown(v *view) {
	d.put(`<p class="range" id="range">`)
	switch {
	case len(v.Pods) > 0:
		d.put(`%s to %s of %s`, v.First, v.Last, v.Matching)
		if v.Narrowed {
			d.put(`, from %s in all`, v.All)
		}
	case v.All > 0:
		d.put(`None of the %s volumes matches. <a href="./">Show all</a>`, v.All)
	default:
		d.put(`This node has no volumes.`)
	}
	d.line(`</p>`)
}

// turn leads to the pages before and after.
func (d *document) turn(before, after string) {
	d.put(`<nav id="turn" class="turn" aria-label="Pages of volumes">`)
	if before != "" {
		d.put(`<a id="to-before" href="%s">Previous page</a> `, before)
	}
	if after != "" {
		d.put(`<a id="to-after" href="%s">Next page</a>`, after)
	}
	d.line(`</nav>`)
}

func (d *document) pod(p pod) {
	d.line(`<tbody role="rowgroup" id="%s">`, p.ID)
	d.put(`<tr role="row" class="pod"><th role="rowheader" scope="rowgroup" colspan="4"><h3>%s</h3>`, p.Name)
	if p.Note != "" {
		d.put(` <span class="quiet">%s</span>`, p.Note)
	}
	d.line(`</th></tr>`)
	d.past(p.ID, p.History)
	for _, r := range p.Volumes {
		d.volume(r)
	}
	d.line(`</tbody>`)
}

func (d *document) volume(r row) {
	d.put(`<tr role="row" class="volume" id="%s"><th role="rowheader" scope="row">%s`, r.ID, r.Name)
	if r.Claim != "" {
		d.put(` <span class="quiet">claim %s</span>`, r.Claim)
	}
	d.put(`</th>`)
	d.state(r.Class, r.State)
	d.since(r.Since)
	d.line(`<td role="cell" class="source">%s <span class="quiet">%s</span></td></tr>`, r.Source, r.Plugin)
	if r.Explained {
		d.startWhy(r.Class, r.ID)
		d.paragraph("error", r.Text)
		d.paragraph("advice", r.Advice)
		for _, note := range r.Notes {
			d.paragraph("quiet", note)
		}
		d.endWhy()
	}
	d.past(r.ID, r.History)
}

// past is the row of what happened to what has a row.
func (d *document) past(id string, h history) {
	if len(h.Events) == 0 {
		return
	}
	d.put(`<tr role="row" class="past" id="past-%s"><td role="cell" colspan="4">`, id)
	d.details(h)
	d.line(`</td></tr>`)
}

// details are what happened; a reader opens them.
func (d *document) details(h history) {
	d.put(`<details id="%s"><summary>%s</summary><ul>`, h.ID, h.Summary)
	for _, e := range h.Events {
		d.put(`<li><time datetime="%s">%s</time> `, e.At.Machine, e.At.Clock)
		if e.From != "" {
			d.put(`%s `, e.From)
		}
		d.put(`<span class="badge %s">%s</span> %s`, e.Class, e.Reason, e.Text)
		if e.Times != "" {
			d.put(` <span class="quiet">%s</span>`, e.Times)
		}
		d.put(`</li>`)
	}
	d.put(`</ul></details>`)
}
