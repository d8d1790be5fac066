"""Parts that several pages share: the page shell, charts, heat maps, base style sheets and scripts."""
