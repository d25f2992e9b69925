"""How the documentation is built: ``make docs``."""

import inspect
import os
import re
import shutil
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math import latex2mathml

HERE = Path(__file__).parent

project = "pymc_apm"
author = "The pymc_apm developers"
project_copyright = "The pymc_apm developers"
release = version = version_of("pymc_apm")

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
root_doc = "index"
exclude_patterns = ["_build", "*.py"]
nitpick_ignore_regex = [("py:.*", r"(?!pymc_apm).*")]  # names of other packages have no page here
nitpicky = True

# Notebooks live in examples/, without outputs. They are copied here, and executed by the build.
NOTEBOOKS = HERE / "notebooks"
shutil.rmtree(NOTEBOOKS, ignore_errors=True)
NOTEBOOKS.mkdir()
for notebook in sorted((HERE.parent / "examples").glob("*.ipynb")):
    shutil.copy2(notebook, NOTEBOOKS)

# Warnings of PyTensor about this machine (no BLAS for C code, no Numba for a black box) are not
# the reader's.
os.environ["PYTHONWARNINGS"] = ",".join(
    f"ignore::UserWarning:pytensor.link.{module}"
    for module in ("c.cmodule", "numba.dispatch.basic")
)
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE / "_build" / "cache")
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "amsmath"]
myst_heading_anchors = 3

autodoc_typehints = "none"  # the docstrings say it in words
autodoc_member_order = "bysource"
autosummary_generate = True
napoleon_google_docstring = False
napoleon_use_rtype = False
add_module_names = False
python_use_unqualified_type_names = True

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_math_renderer = "mathml"  # see below: nothing is fetched to show a page either
html_theme = "pymc_sphinx_theme"
html_title = "pymc_apm"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_sidebars = {"index": [], "is_this_for_you": [], "getting_started": []}
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "google_analytics_id": "",  # the theme's own is that of pymc.io
    "use_search_override": False,
    "secondary_sidebar_items": ["page-toc"],
    "navbar_start": ["navbar-logo"],
    "navbar_end": ["theme-switcher"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "show_prev_next": True,
    "header_links_before_dropdown": 6,
    "logo": {"text": f"pymc_apm {release}"},
}


def own_signature(app: Any, what: str, name: str, obj: Any, *_: Any) -> tuple[str, str] | None:
    """Take the signature of a step from ``__init__``; PyMC's ``__new__`` takes anything."""
    if what != "class" or not hasattr(obj, "stats_dtypes_shapes"):
        return None
    _self, *parameters = inspect.signature(obj.__init__).parameters.values()
    bare = [parameter.replace(annotation=parameter.empty) for parameter in parameters]
    return str(inspect.Signature(bare)), ""


def inline_math(translator: Any, node: nodes.math) -> None:
    """Write a formula within a sentence as MathML, which browsers know without scripts."""
    translator.body.append(latex2mathml.tex2mathml(node.astext()))
    raise nodes.SkipNode


def displayed_math(translator: Any, node: nodes.math_block) -> None:
    """Write a formula on a line of its own."""
    formula = latex2mathml.tex2mathml(node.astext(), as_block=True)
    translator.body.append(f'<div class="math">{formula}</div>')
    raise nodes.SkipNode


def add_thumbnails(app: Any, exception: Exception | None) -> None:
    """Put the first figure of each notebook before the link to it in a gallery."""
    if exception is not None or app.builder.name != "html":
        return
    folder = Path(app.outdir)

    def with_figure(match: re.Match[str]) -> str:
        notebook = (folder / match["notebook"]).read_text(encoding="utf-8")
        figure = re.search(r'<img [^>]*src="\.\./(_images/[^"]+)"', notebook)
        image = f'<img alt="" src="{figure[1]}"/>' if figure else ""
        return match["start"] + image + match[0].removeprefix(match["start"])

    for name in ("index.html", "gallery.html"):
        page = folder / name
        begin, mark, end = page.read_text(encoding="utf-8").partition('<div class="gallery')
        link = r'(?P<start><li><p><a [^>]*href="(?P<notebook>notebooks/[^"]+)"[^>]*>)'
        page.write_text(begin + mark + re.sub(link, with_figure, end), encoding="utf-8")


def setup(app: Any) -> None:
    """Register what this file defines."""
    app.add_html_math_renderer("mathml", (inline_math, None), (displayed_math, None))
    app.connect("build-finished", add_thumbnails)
    app.connect("autodoc-process-signature", own_signature)
